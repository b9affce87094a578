"""Pods of a scorer's pool that are lost while an attempt runs."""

from __future__ import annotations

from typing import Any

import pytest

from control.operator_core.pools import FAILING, KEY, READY, ROLLOUT, Pools
from omni_operator.cluster.kinds import PODS

GROUP = "scorer-sharp"


def reward(replicas: int) -> dict[str, Any]:
    return {"scorers": [{"name": "sharp", "builtin": "jpeg", "pool": {"replicas": replicas}}]}


async def test_a_lost_scorer_pod_ends_no_attempt(simulation: Any, pools: Pools) -> None:
    await pools.run(reward=reward(1), backoffLimit=0)
    assert pools.groups() == [("trainer", 1), ("rollout", 3), (GROUP, 1)]
    name = pools.add(GROUP)
    await simulation.settle()
    assert simulation.condition("Ready").reason == "TrainerAndRolloutsServing"
    status = {
        **READY,
        "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}],
    }
    simulation.cluster.change(PODS, KEY[0], name, status=status)
    await simulation.settle()
    simulation.cluster.remove(PODS, KEY[0], name)
    await simulation.settle()
    ready = simulation.condition("Ready")
    assert (ready.status, ready.reason) == ("False", "PodsNotReady")
    assert ready.message == f"head ready, trainer pods 1/1, rollout pods 3/3, {GROUP} pods 0/1"
    pools.add(GROUP)
    await simulation.settle()
    assert simulation.condition("Ready").reason == "TrainerAndRolloutsServing"
    assert (simulation.attempts(), simulation.status().failures) == (["red-a01"], ())


@pytest.mark.parametrize("others", [0, 1])
async def test_a_scorer_pod_that_keeps_failing_fails_the_attempt_only_without_another(
    simulation: Any, pools: Pools, others: int
) -> None:
    await pools.run(reward=reward(1 + others), backoffLimit=0)
    for _ in range(others):
        pools.add(GROUP)
    pools.add(GROUP, FAILING)
    await simulation.settle()
    assert [failure.reason for failure in simulation.status().failures] == ([] if others else ["WorkerLost"])


async def test_another_number_of_scorer_pods_is_for_the_next_attempt(simulation: Any, pools: Pools) -> None:
    await pools.run(reward=reward(1))
    pools.add(GROUP)
    simulation.edit(reward=reward(2), rollout=ROLLOUT)
    await simulation.settle()
    assert pools.groups() == [("trainer", 1), ("rollout", 3), (GROUP, 1)]
    assert simulation.attempts() == ["red-a01"]
