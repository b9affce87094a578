"""Requests of the operator when the pods of a running attempt are scaled, or replaced after a change of the spec."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from control.operator_core.pools import ROLLOUT, Pools

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
    await pools.report()


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
    assert getattr(simulation.status(), pool).desired == replicas
    assert simulation.cluster.counts() == Counter({("patch", "rayclusters"): 1, ("apply_status", "diffusionrljobs"): 1})
    updated = simulation.condition("Updated")
    assert (updated.status, updated.reason) == ("True", "AsRequested"), "it is no change for the next attempt"
    before = pools.patches()
    await simulation.after(3600)
    assert (pools.patches(), simulation.attempts()) == (before, ["red-a01"])


@pytest.mark.parametrize("pool", GROUPS)
async def test_a_roll_reads_and_writes_the_cluster_once_for_each_pod_and_twice_more(
    simulation: Any, pools: Pools, pool: str
) -> None:
    await start(pools, pool)
    simulation.cluster.counts()
    simulation.edit(**spec(pool, **IMAGE))
    await simulation.settle()
    for _ in range(3):
        assert len(pools.replace_named(pool)) == 1
        await pools.report()
    assert simulation.condition("Updated").reason == "AsRequested"
    # The template, each pod, and the end, each on what was read before; the beginning and the end are events.
    rayclusters = {("get", "rayclusters"): 3 + 2, ("patch", "rayclusters"): 3 + 2}
    others = {("apply_status", "diffusionrljobs"): 2, ("create", "events"): 2}
    assert simulation.cluster.counts() == Counter(rayclusters | others)
    await simulation.after(7200)
    assert not any(kind == "rayclusters" for _, kind in simulation.cluster.counts())
