"""Reward pods that are lost, replaced and scaled while an attempt runs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from control.operator_core.pools import CLUSTER, KEY, READY, ROLLOUT, Pools
from omni_operator.cluster.kinds import PODS, RAYCLUSTERS
from omni_operator.status.decisions.timeouts import Timeouts

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LOOPING = {"waiting": {"reason": "CrashLoopBackOff"}}
KILLED = {"terminated": {"reason": "OOMKilled", "exitCode": 137, "message": ""}}


def reward(replicas: int) -> dict[str, Any]:
    model = {"base": "org/judge", "placement": "Separate", "replicas": replicas}
    return {"scorers": [{"name": "judged", "builtin": "genrm_ocr"}], "model": model}


async def start(pools: Pools, replicas: int, **job: Any) -> list[str]:
    """A job that runs, with all reward pods ready; returns their names."""
    await pools.run(reward=reward(replicas), **job)
    names = [pools.add("reward") for _ in range(replicas)]
    await pools.simulation.settle()
    return names


async def test_both_groups_may_change_at_once(simulation: Any, pools: Pools) -> None:
    await start(pools, 2)
    simulation.edit(reward=reward(3), rollout={**ROLLOUT, "replicas": 4})
    await simulation.settle()
    assert pools.groups() == [("trainer", 1), ("rollout", 4), ("reward", 3)]
    assert simulation.attempts() == ["red-a01"]


async def test_a_lost_reward_pod_ends_no_attempt_and_the_conditions_count_pods(simulation: Any, pools: Pools) -> None:
    names = await start(pools, 2, backoffLimit=0)
    assert simulation.condition("Ready").reason == "TrainerAndRolloutsServing"
    simulation.cluster.remove(PODS, KEY[0], names[0])
    await simulation.settle()
    ready = simulation.condition("Ready")
    assert (ready.status, ready.reason) == ("True", "JudgesMissing")
    assert ready.message == "reward pods 1/2: KubeRay starts the others"
    simulation.cluster.remove(PODS, KEY[0], names[1])
    await simulation.settle()
    ready = simulation.condition("Ready")
    assert (ready.status, ready.reason) == ("False", "PodsNotReady")
    assert ready.message == "head ready, trainer pods 1/1, rollout pods 3/3, reward pods 0/2"
    for _ in names:
        pools.add("reward")
    await simulation.settle()
    assert simulation.condition("Ready").reason == "TrainerAndRolloutsServing"
    assert (simulation.attempts(), simulation.status().failures) == (["red-a01"], ())


@pytest.mark.parametrize("others", [0, 1])
async def test_a_reward_pod_that_keeps_failing_fails_the_attempt_only_without_another(
    simulation: Any, pools: Pools, others: int
) -> None:
    await pools.run(reward=reward(1 + others), backoffLimit=0)
    for _ in range(others):
        pools.add("reward")
    container = {"name": "ray", "state": LOOPING, "lastState": KILLED, "restartCount": Timeouts().restarts}
    pools.add("reward", {"phase": "Running", "containerStatuses": [container]})
    await simulation.settle()
    assert [failure.reason for failure in simulation.status().failures] == ([] if others else ["WorkerLost"])


IMAGE = {"podTemplate": {"spec": {"containers": [{"name": "ray", "image": "judge:2"}]}}}


def changed(**fields: Any) -> dict[str, Any]:
    """The reward of two pods with other fields of its model."""
    made = reward(2)
    return {**made, "model": {**made["model"], **fields}}


async def report(simulation: Any) -> None:
    """The trainer reports all ready reward pods, and all rollout pods."""
    bodies = [body for body in simulation.cluster.all(PODS) if body["status"].get("conditions") == READY["conditions"]]
    simulation.report(
        "heartbeat",
        **{
            f"{pool}/replica_versions": {
                body["status"]["podIP"]: version
                for body in bodies
                if body["metadata"]["labels"]["ray.io/group"] == pool
            }
            for pool, version in (("rollout", 7), ("reward", 0))
        },
    )
    await simulation.settle()


def group_of(simulation: Any, index: int) -> dict[str, Any]:
    found: dict[str, Any] = simulation.cluster.get(RAYCLUSTERS, KEY[0], CLUSTER)["spec"]["workerGroupSpecs"][index]
    return found


def replace_named(simulation: Any, pools: Pools) -> list[str]:
    """KubeRay deletes the reward pods that are named, and starts others; the names."""
    there = {body["metadata"]["name"] for body in simulation.cluster.all(PODS)}
    named = group_of(simulation, 2).get("scaleStrategy", {}).get("workersToDelete", [])
    for name in (found := [name for name in named if name in there]):
        simulation.cluster.remove(PODS, KEY[0], name)
        pools.add("reward")
    return found


@pytest.mark.parametrize(
    "fields",
    [
        IMAGE,
        {"resources": {"requests": {"cpu": "2"}}},
        {"sharedMemory": {"sizeLimit": "3Gi"}},
        {"scheduling": {"nodeSelector": {"zone": "a"}}},
    ],
    ids=lambda fields: next(iter(fields)),
)
async def test_a_change_of_what_reward_pods_are_made_of_replaces_them_one_by_one_and_no_others(
    simulation: Any, pools: Pools, fields: dict[str, Any]
) -> None:
    names = await start(pools, 2, backoffLimit=0)
    await report(simulation)
    trainer, rollout, _ = (group_of(simulation, index) for index in range(3))
    simulation.edit(reward=changed(**fields))
    await simulation.settle()
    order = []
    for _ in names:
        updated = simulation.condition("Updated")
        assert (updated.status, updated.reason) == ("False", "RollingUpdate")
        order += replace_named(simulation, pools)
        await simulation.after(15)
        assert not replace_named(simulation, pools), "the new judge does not serve"
        await report(simulation)
    assert order == names
    assert simulation.condition("Updated").reason == "AsRequested"
    assert pools.events("PodsUpdated") == ["all pods have the current spec"]
    assert [group_of(simulation, index) for index in (0, 1)] == [trainer, rollout]
    assert (simulation.attempts(), simulation.status().failures) == (["red-a01"], ())


async def test_another_model_of_the_judge_is_for_the_next_attempt(simulation: Any, pools: Pools) -> None:
    await start(pools, 2)
    await report(simulation)
    before = pools.patches()
    simulation.edit(reward=changed(**IMAGE, base="org/other"))
    await simulation.settle()
    await simulation.after(7200)
    assert (simulation.condition("Updated").reason, pools.patches()) == ("NextAttempt", before)


async def test_rollout_and_reward_pods_are_replaced_at_the_same_time(simulation: Any, pools: Pools) -> None:
    await start(pools, 2)
    await report(simulation)
    simulation.edit(reward=changed(**IMAGE), rollout={**ROLLOUT, **IMAGE})
    await simulation.settle()
    assert len(pools.leaving(1)) == len(replace_named(simulation, pools)) == 1
    said = simulation.condition("Updated").message
    assert "0 of 3 rollout pods" in said and "0 of 2 reward pods" in said
