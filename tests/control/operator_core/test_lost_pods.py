"""Rollout, reward and scorer pods that are lost, replaced and scaled while an attempt runs."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.operator_core.pools import CLUSTER, FAILING, KEY, READY, ROLLOUT, Pools, spec_of, unscheduled
from omni_operator.cluster.kinds import PODS, RAYCLUSTERS, RAYJOBS
from omni_operator.status.decisions.scaling import leaving_pods
from omni_operator.status.decisions.timeouts import Timeouts
from omni_operator.status.observed.observation import ObservedPod

SCORER = "scorer-sharp"


async def test_a_lost_rollout_pod_ends_no_attempt_and_the_conditions_count_pods(simulation: Any, pools: Pools) -> None:
    await pools.run(backoffLimit=0)
    assert simulation.verdict("Ready") == ("True", "TrainerAndRolloutsServing")
    for number, verdict in ((2, ("True", "RolloutsMissing")), (3, ("False", "TooFewRollouts"))):
        simulation.cluster.remove(PODS, KEY[0], f"{CLUSTER}-rollout-{number}")
        await simulation.settle()
        ready = simulation.condition("Ready")
        assert (ready.status, ready.reason) == verdict
    assert ready.message == "rollout pods 1/3: the trainer waits, spec.rollout.minReplicas is 2"
    status = simulation.status().rollout
    assert (status.desired, status.ready, status.updated, status.summary) == (3, 1, 1, "1/3")
    assert status.selector == f"ray.io/cluster={CLUSTER},ray.io/group=rollout"
    lost = ["attempt 1: rollout pods 2/3: KubeRay starts the others", f"attempt 1: {ready.message}"]
    assert pools.events("RolloutPodLost") == lost
    for _ in range(2):
        pools.add("rollout")
    await simulation.settle()
    assert simulation.condition("Ready").reason == "TrainerAndRolloutsServing"
    assert (simulation.attempts(), simulation.status().failures) == (["red-a01"], ())


async def test_a_lost_trainer_pod_is_not_hidden_by_rollout_pods(simulation: Any, pools: Pools) -> None:
    await pools.run()
    simulation.cluster.remove(PODS, KEY[0], f"{CLUSTER}-trainer-1")
    await simulation.settle()
    ready = simulation.condition("Ready")
    assert (ready.status, ready.reason) == ("False", "PodsNotReady")
    assert ready.message == "head ready, trainer pods 0/1, rollout pods 3/3"


async def test_a_rollout_pod_that_keeps_failing_is_not_the_reason_of_a_failure(simulation: Any, pools: Pools) -> None:
    await pools.run(backoffLimit=0)
    pools.add("rollout", FAILING)
    await simulation.settle()
    assert (simulation.attempts(), simulation.status().failures) == (["red-a01"], ())
    simulation.report("error", message="2 rollout replicas are left", reason="WorkerLost")
    simulation.end(1, "FAILED", "AppFailed", "exit code 1")
    await simulation.after(61)
    (failure,) = simulation.status().failures
    assert (failure.reason, failure.message) == ("WorkerLost", "2 rollout replicas are left")


async def test_a_scale_down_names_the_pods_that_leave(simulation: Any, pools: Pools) -> None:
    await pools.run()
    await simulation.after(5)
    late = pools.add("rollout")
    starting = pools.add("rollout", {"phase": "Pending"})
    await simulation.edit_and_settle(rollout={**ROLLOUT, "replicas": 5})
    await simulation.edit_and_settle(rollout={**ROLLOUT, "replicas": 3})
    assert pools.leaving() == sorted([late, starting]), "those that have done the least"
    # KubeRay counts a pod that is still being deleted as one that runs, unless it is named.
    finalizers = {"finalizers": ["test/keep"]}
    simulation.cluster.change(PODS, KEY[0], late, metadata=finalizers)
    for name in (late, starting):
        simulation.cluster.remove(PODS, KEY[0], name)
    await simulation.edit_and_settle(rollout={**ROLLOUT, "replicas": 2})
    first, *others = pools.leaving()
    assert late in (first, *others) and len(others) == 1 and starting not in (first, *others)
    assert pools.groups()[1] == ("rollout", 2)


async def starting(simulation: Any, pools: Pools, ready: int, **rollout: Any) -> list[str]:
    """An attempt whose pods are ready but for rollout pods that find no node; their names."""
    await simulation.submit_starting(rollout={**ROLLOUT, **rollout})
    rayjob = simulation.cluster.get(RAYJOBS, KEY[0], "red-a01")
    simulation.change(RAYCLUSTERS, spec=rayjob["spec"]["rayClusterSpec"])
    pools.add("trainer")
    without = [pools.add("rollout", unscheduled("0/3 nodes")) for _ in range(ROLLOUT["replicas"] - ready)]
    for _ in range(ready):
        pools.add("rollout")
    await simulation.settle()
    return without


async def test_an_attempt_starts_without_rollout_pods_that_find_no_node_and_asks_for_them_when_it_runs(
    simulation: Any, pools: Pools
) -> None:
    (without,) = await starting(simulation, pools, ready=2)
    assert simulation.condition("Ready").reason == "Unschedulable"
    await simulation.after(Timeouts().queue.total_seconds() - 30)
    assert (pools.groups()[1], pools.patches()) == (("rollout", 3), 0), "it may still find one"
    await simulation.after(60)
    # KubeRay starts the program once all pods that the group asks for are ready.
    assert (pools.groups()[1], pools.leaving()) == (("rollout", 2), [without])
    simulation.cluster.remove(PODS, KEY[0], without)
    await simulation.after(3600)
    assert (pools.groups()[1], pools.patches()) == (("rollout", 2), 1)
    await simulation.run_and_settle(1)
    assert (pools.groups()[1], pools.patches()) == (("rollout", 3), 2)
    ready = simulation.condition("Ready")
    rollouts = simulation.status().rollout
    assert (ready.status, ready.reason, rollouts.summary) == ("True", "RolloutsMissing", "2/3")
    assert (simulation.attempts(), simulation.status().failures) == (["red-a01"], ())


async def test_an_attempt_starts_without_rollout_pods_that_a_quota_refuses(simulation: Any, pools: Pools) -> None:
    (without,) = await starting(simulation, pools, ready=2)
    simulation.cluster.remove(PODS, KEY[0], without)
    refused = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "exceeded quota: small"}
    simulation.change(RAYCLUSTERS, status={"conditions": [refused]})
    await simulation.settle()
    assert (simulation.condition("Ready").reason, pools.patches()) == ("QuotaExceeded", 0)
    await simulation.after(Timeouts().queue.total_seconds() + 60)
    assert (pools.groups()[1], pools.patches()) == (("rollout", 2), 1)


@pytest.mark.parametrize(
    ("ready", "rollout"),
    [(1, {}), (2, {"minReplicas": None}), (2, {"minReplicas": 3})],
    ids=["fewer than minReplicas are ready", "the job has no minReplicas", "all are needed"],
)
async def test_an_attempt_waits_for_rollout_pods_that_it_needs(
    simulation: Any, pools: Pools, ready: int, rollout: dict[str, Any]
) -> None:
    await starting(simulation, pools, ready, **rollout)
    await simulation.after(3600)
    assert (pools.groups()[1], pools.patches()) == (("rollout", 3), 0)
    assert simulation.condition("Ready").reason == "Unschedulable"


pods = st.builds(
    ObservedPod,
    name=st.uuids().map(str),
    uid=st.just("u"),
    attempt=st.just(1),
    group=st.just("rollout"),
    created=st.integers(0, 3).map(lambda hours: datetime(2026, 1, 1, hours, tzinfo=UTC)),
    ready=st.booleans(),
    deleting=st.booleans(),
    unschedulable=st.sampled_from(["", "no node"]),
)


@given(st.lists(pods, max_size=6, unique_by=lambda pod: pod.name), st.integers(0, 7))
def test_as_many_pods_stay_as_are_kept_and_those_are_ready_before_others(found: list[ObservedPod], kept: int) -> None:
    named = leaving_pods(found, kept)
    staying = [pod for pod in found if pod.name not in named]
    assert len(staying) == min(kept, sum(not pod.deleting for pod in found))
    assert not any(pod.deleting for pod in staying), "KubeRay must not count them"
    chosen = [pod for pod in found if pod.name in named and not pod.deleting]

    def rank(pod: ObservedPod) -> tuple[bool, bool, datetime]:
        return bool(pod.unschedulable), not pod.ready, pod.created

    assert all(rank(stays) <= rank(goes) for stays in staying for goes in chosen)


async def test_a_group_that_changed_in_between_is_not_overwritten(simulation: Any, pools: Pools) -> None:
    await pools.run()
    simulation.frozen = {RAYCLUSTERS}
    pools.change(1, replicas=7)
    simulation.edit(rollout={**ROLLOUT, "replicas": 4})
    simulation.watch()
    await simulation.reconcile()
    assert pools.groups()[1] == ("rollout", 7)
    simulation.frozen = set()
    await simulation.after(5)
    assert pools.groups()[1] == ("rollout", 4)


async def test_a_lost_reward_pod_ends_no_attempt_and_the_conditions_count_pods(simulation: Any, pools: Pools) -> None:
    names = await pools.run_both(backoffLimit=0)
    assert simulation.condition("Ready").reason == "TrainerAndRolloutsServing"
    simulation.cluster.remove(PODS, KEY[0], names[0])
    await simulation.settle()
    assert simulation.verdict("Ready") == ("True", "JudgesMissing")
    assert simulation.condition("Ready").message == "reward pods 2/3: KubeRay starts the others"
    for name in names[1:]:
        simulation.cluster.remove(PODS, KEY[0], name)
    await simulation.settle()
    assert simulation.verdict("Ready") == ("False", "PodsNotReady")
    message = "head ready, trainer pods 1/1, rollout pods 3/3, reward pods 0/3"
    assert simulation.condition("Ready").message == message
    for _ in names:
        pools.add("reward")
    await simulation.settle()
    assert simulation.condition("Ready").reason == "TrainerAndRolloutsServing"
    assert (simulation.attempts(), simulation.status().failures) == (["red-a01"], ())


def sharp(replicas: int) -> dict[str, Any]:
    """The part of a spec with a scorer in its own pods."""
    return {"reward": {"scorers": [{"name": "sharp", "builtin": "jpeg", "pool": {"replicas": replicas}}]}}


async def test_a_lost_scorer_pod_ends_no_attempt(simulation: Any, pools: Pools) -> None:
    await pools.run(**sharp(1), backoffLimit=0)
    name = pools.add(SCORER)
    await simulation.settle()
    assert simulation.condition("Ready").reason == "TrainerAndRolloutsServing"
    disrupted = [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]
    simulation.cluster.change(PODS, KEY[0], name, status={**READY, "conditions": disrupted})
    await simulation.settle()
    simulation.cluster.remove(PODS, KEY[0], name)
    await simulation.settle()
    assert simulation.verdict("Ready") == ("False", "PodsNotReady")
    message = f"head ready, trainer pods 1/1, rollout pods 3/3, {SCORER} pods 0/1"
    assert simulation.condition("Ready").message == message
    pools.add(SCORER)
    await simulation.settle()
    assert simulation.condition("Ready").reason == "TrainerAndRolloutsServing"
    assert (simulation.attempts(), simulation.status().failures) == (["red-a01"], ())


@pytest.mark.parametrize("group", ["reward", SCORER])
@pytest.mark.parametrize("others", [0, 1])
async def test_a_reward_pod_that_keeps_failing_fails_the_attempt_only_without_another(
    simulation: Any, pools: Pools, group: str, others: int
) -> None:
    spec = spec_of("reward", replicas=1 + others) if group == "reward" else sharp(1 + others)
    await pools.run(**spec, backoffLimit=0)
    for _ in range(others):
        pools.add(group)
    pools.add(group, FAILING)
    await simulation.settle()
    assert [failure.reason for failure in simulation.status().failures] == ([] if others else ["WorkerLost"])


async def test_another_number_of_scorer_pods_is_for_the_next_attempt(simulation: Any, pools: Pools) -> None:
    await pools.run(**sharp(1))
    pools.add(SCORER)
    await simulation.edit_and_settle(**sharp(2), rollout=ROLLOUT)
    assert pools.groups() == [("trainer", 1), ("rollout", 3), (SCORER, 1)]
    assert simulation.attempts() == ["red-a01"]
