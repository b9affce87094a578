"""Reward pods that are lost, replaced and scaled while an attempt runs."""

from __future__ import annotations

from typing import Any

import pytest

from control.operator_core.pools import CLUSTER, FAILING, KEY, ROLLOUT, Pools
from omni_operator.cluster.kinds import PODS, RAYCLUSTERS


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
    pools.add("reward", FAILING)
    await simulation.settle()
    assert [failure.reason for failure in simulation.status().failures] == ([] if others else ["WorkerLost"])


IMAGE = {"podTemplate": {"spec": {"containers": [{"name": "ray", "image": "judge:2"}]}}}


def changed(**fields: Any) -> dict[str, Any]:
    """The reward of two pods with other fields of its model."""
    made = reward(2)
    return {**made, "model": {**made["model"], **fields}}


def group_of(simulation: Any, index: int) -> dict[str, Any]:
    found: dict[str, Any] = simulation.cluster.get(RAYCLUSTERS, KEY[0], CLUSTER)["spec"]["workerGroupSpecs"][index]
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
    await pools.report()
    trainer, rollout, _ = (group_of(simulation, index) for index in range(3))
    simulation.edit(reward=changed(**fields))
    await simulation.settle()
    order = []
    for _ in names:
        updated = simulation.condition("Updated")
        assert (updated.status, updated.reason) == ("False", "RollingUpdate")
        order += pools.replace_named("reward")
        await simulation.after(15)
        assert not pools.replace_named("reward"), "the new judge does not serve"
        await pools.report()
    assert order == names
    assert simulation.condition("Updated").reason == "AsRequested"
    assert pools.events("PodsUpdated") == ["all pods have the current spec"]
    assert [group_of(simulation, index) for index in (0, 1)] == [trainer, rollout]
    assert (simulation.attempts(), simulation.status().failures) == (["red-a01"], ())


async def test_another_model_of_the_judge_is_for_the_next_attempt(simulation: Any, pools: Pools) -> None:
    await start(pools, 2)
    await pools.report()
    before = pools.patches()
    simulation.edit(reward=changed(**IMAGE, base="org/other"))
    await simulation.settle()
    await simulation.after(7200)
    assert (simulation.condition("Updated").reason, pools.patches()) == ("NextAttempt", before)


async def test_rollout_and_reward_pods_are_replaced_at_the_same_time(simulation: Any, pools: Pools) -> None:
    await start(pools, 2)
    await pools.report()
    simulation.edit(reward=changed(**IMAGE), rollout={**ROLLOUT, **IMAGE})
    await simulation.settle()
    assert len(pools.leaving(1)) == len(pools.replace_named("reward")) == 1
    said = simulation.condition("Updated").message
    assert "0 of 3 rollout pods" in said and "0 of 2 reward pods" in said
