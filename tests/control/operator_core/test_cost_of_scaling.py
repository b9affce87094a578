"""Requests of the operator when the pods of a running attempt are scaled, or replaced after a change of the spec."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from control.operator_core.pools import CLUSTER, KEY, READY, ROLLOUT, Pools
from omni_operator.cluster.kinds import PODS, RAYCLUSTERS

IMAGE = {"podTemplate": {"spec": {"containers": [{"name": "ray", "image": "image:2"}]}}}
GROUPS = {"rollout": 1, "reward": 2}  # by name, their places


def spec(pool: str, **changed: Any) -> dict[str, Any]:
    """The parts of a spec with three pods in each pool, one of which has other fields."""
    own = {"base": "org/judge", "placement": "Separate", "replicas": 3}
    judge = {"scorers": [{"name": "judged", "builtin": "genrm_ocr"}], "model": own}
    if pool == "rollout":
        return {"rollout": {**ROLLOUT, **changed}, "reward": judge}
    return {"rollout": ROLLOUT, "reward": {**judge, "model": {**own, **changed}}}


async def start(pools: Pools, pool: str) -> None:
    """A job whose pods are all ready, and reported."""
    await pools.run(**spec(pool))
    for _ in range(3):
        pools.add("reward")
    await report(pools.simulation)


async def report(simulation: Any) -> None:
    """The trainer reports that the replicas in all ready pods serve."""
    found: dict[str, dict[str, int]] = {pool: {} for pool in GROUPS}
    for body in simulation.cluster.all(PODS):
        pool = body["metadata"]["labels"].get("ray.io/group")
        if pool in GROUPS and body["status"].get("conditions") == READY["conditions"]:
            found[pool][body["status"]["podIP"]] = 0
    simulation.report("heartbeat", **{f"{pool}/replica_versions": versions for pool, versions in found.items()})
    await simulation.settle()


@pytest.mark.parametrize("pool", GROUPS)
@pytest.mark.parametrize("replicas", [2, 9])
async def test_a_change_of_the_number_takes_two_requests(
    simulation: Any, pools: Pools, pool: str, replicas: int
) -> None:
    await start(pools, pool)
    simulation.cluster.counts()
    simulation.edit(**spec(pool, replicas=replicas))
    await simulation.settle()
    assert pools.groups()[GROUPS[pool]] == (pool, replicas)
    assert simulation.cluster.counts() == Counter({("patch", "rayclusters"): 1, ("apply_status", "diffusionrljobs"): 1})


@pytest.mark.parametrize("pool", GROUPS)
async def test_a_roll_reads_and_writes_the_cluster_once_for_each_pod_and_twice_more(
    simulation: Any, pools: Pools, pool: str
) -> None:
    await start(pools, pool)
    simulation.cluster.counts()
    simulation.edit(**spec(pool, **IMAGE))
    await simulation.settle()
    for _ in range(3):
        body = simulation.cluster.get(RAYCLUSTERS, KEY[0], CLUSTER)
        there = {pod["metadata"]["name"] for pod in simulation.cluster.all(PODS)}
        (leaving,) = there & set(body["spec"]["workerGroupSpecs"][GROUPS[pool]]["scaleStrategy"]["workersToDelete"])
        simulation.cluster.remove(PODS, KEY[0], leaving)
        pools.add(pool)
        await report(simulation)
    assert simulation.condition("Updated").reason == "AsRequested"
    # The template, each pod, and the end, each on what was read before; the beginning and the end are events.
    rayclusters = {("get", "rayclusters"): 3 + 2, ("patch", "rayclusters"): 3 + 2}
    others = {("apply_status", "diffusionrljobs"): 2, ("create", "events"): 2}
    assert simulation.cluster.counts() == Counter(rayclusters | others)
    await simulation.after(7200)
    assert not any(kind == "rayclusters" for _, kind in simulation.cluster.counts())
