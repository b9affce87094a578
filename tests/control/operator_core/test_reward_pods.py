"""Reward pods that are lost, replaced and scaled while an attempt runs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.operator_core.pools import CLUSTER, KEY, ROLLOUT, Pools
from omni_operator.cluster.kinds import JOBS, PODS, RAYCLUSTERS, RAYJOBS
from omni_operator.status.job_facts import JobFacts
from omni_operator.status.observation import Observation, ObservedPod, ObservedRayCluster, RewardGroup
from omni_operator.status.scaling import scale
from omni_operator.status.timeouts import Timeouts

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


@pytest.mark.parametrize("replicas", [5, 1])
async def test_a_change_of_replicas_scales_the_running_attempt_with_one_request(
    simulation: Any, pools: Pools, replicas: int
) -> None:
    await start(pools, 2)
    before = pools.patches()
    simulation.edit(reward=reward(replicas))
    await simulation.settle()
    assert pools.groups() == [("trainer", 1), ("rollout", 3), ("reward", replicas)]
    updated = simulation.condition("Updated")
    assert (updated.status, updated.reason) == ("True", "AsRequested"), "it is no change for the next attempt"
    await simulation.after(3600)
    assert (pools.patches() - before, simulation.attempts()) == (1, ["red-a01"])


async def test_both_groups_may_change_at_once(simulation: Any, pools: Pools) -> None:
    await start(pools, 2)
    simulation.edit(reward=reward(3), rollout={**ROLLOUT, "replicas": 4})
    await simulation.settle()
    assert pools.groups() == [("trainer", 1), ("rollout", 4), ("reward", 3)]
    assert simulation.attempts() == ["red-a01"]


async def test_a_scale_down_names_the_pods_that_leave(simulation: Any, pools: Pools) -> None:
    first, second = await start(pools, 2)
    await simulation.after(5)
    simulation.edit(reward=reward(3))
    await simulation.settle()
    starting = pools.add("reward", {"phase": "Pending"})
    simulation.edit(reward=reward(1))
    await simulation.settle()
    assert len(pools.leaving(2)) == 2 and starting in pools.leaving(2) and {first, second} & set(pools.leaving(2))


async def test_in_a_queue_the_next_attempt_gets_the_number(simulation: Any, pools: Pools) -> None:
    simulation.submit(rollout=ROLLOUT, reward=reward(2))
    simulation.cluster.change(JOBS, *KEY, metadata={"labels": {"kueue.x-k8s.io/queue-name": "q"}})
    await simulation.settle()
    simulation.run(1)
    rayjob = simulation.cluster.get(RAYJOBS, KEY[0], "red-a01")
    simulation.cluster.change(RAYCLUSTERS, KEY[0], CLUSTER, spec=rayjob["spec"]["rayClusterSpec"])
    simulation.edit(reward=reward(3))
    await simulation.settle()
    assert pools.groups()[2] == ("reward", 2)
    assert simulation.condition("Updated").reason == "NextAttempt"


async def test_the_group_of_an_earlier_operator_keeps_its_number(simulation: Any, pools: Pools) -> None:
    await start(pools, 2)
    body = simulation.cluster.get(RAYCLUSTERS, KEY[0], CLUSTER)
    *others, group = body["spec"]["workerGroupSpecs"]
    fixed = {**group, "minReplicas": 2, "maxReplicas": 2}
    simulation.cluster.change(RAYCLUSTERS, KEY[0], CLUSTER, spec={"workerGroupSpecs": [*others, fixed]})
    simulation.edit(reward=reward(3))
    await simulation.settle()
    assert pools.groups()[2] == ("reward", 2), "KubeRay would keep it"


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


async def test_why_a_reward_pod_was_lost_is_not_the_reason_of_a_later_failure(simulation: Any, pools: Pools) -> None:
    await start(pools, 2, backoffLimit=0)
    container = {"name": "ray", "state": LOOPING, "lastState": KILLED, "restartCount": Timeouts().restarts}
    pools.add("reward", {"phase": "Running", "containerStatuses": [container]})
    await simulation.settle()
    simulation.report("error", message="gradients were not finite", reason="ApplicationError")
    simulation.end(1, "FAILED", "AppFailed", "exit code 1")
    await simulation.settle()
    (failure,) = simulation.status().failures
    assert (failure.reason, failure.message) == ("ApplicationError", "gradients were not finite")


counts = st.integers(1, 6)


@given(st.booleans(), counts, counts, counts, counts, st.lists(st.booleans(), max_size=6))
def test_the_number_of_reward_pods_is_that_of_the_spec_where_kuberay_allows_it(
    live: bool, replicas: int, least: int, more: int, wanted: int, ready: list[bool]
) -> None:
    group = RewardGroup(2, replicas, least, least + more)
    cluster = ObservedRayCluster(name="c", uid="u", attempt=1, created=NOW, reward_group=group)
    pods = tuple(
        ObservedPod(name=str(number), uid=str(number), attempt=1, group="reward", created=NOW, ready=each)
        for number, each in enumerate(ready)
    )
    observed = Observation(clusters=(cluster,), pods=pods)
    facts = JobFacts(uid="j", generation=1, created=NOW, reward_pods=wanted, judges_live=live)
    steps = scale(facts, observed, 1, NOW)
    if not live or wanted == replicas or not least <= wanted <= least + more:
        assert steps == ()
        return
    (step,) = steps
    assert (step.group, step.index, step.old, step.new) == ("reward", 2, replicas, wanted)
    leaving = set(step.removed)
    assert leaving <= {pod.name for pod in pods} and len(leaving) == (
        max(0, len(pods) - wanted) if wanted < replicas else 0
    )
    assert all(pod.name in leaving for pod in pods if not pod.ready) or not any(
        pod.ready for pod in pods if pod.name in leaving
    ), "those that serve leave last"
