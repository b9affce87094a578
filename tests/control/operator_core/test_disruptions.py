"""Disruptions: evictions, preemption and lost nodes are no failures, and a budget keeps drains away."""

from __future__ import annotations

from typing import Any

import pytest

from omni_operator.cluster.errors import Forbidden, KindAbsent
from omni_operator.cluster.kinds import POD_DISRUPTION_BUDGETS, PODS, RAYCLUSTERS, RAYJOBS

NAMESPACE = "team-a"
GONE = "Job supervisor actor died: its node has died"
UNREACHABLE = [{"type": "Ready", "status": "False"}, {"type": "ContainersReady", "status": "True"}]


def disrupt(simulation: Any, attempt: int, reason: str = "EvictionByEvictionAPI") -> None:
    """The trainer's pod is told to end, and does."""
    target = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": "node drained"}
    simulation.pod(attempt, "worker", {"conditions": [target]})
    simulation.cluster.remove(PODS, NAMESPACE, f"red-a{attempt:02d}-x1-worker")


async def end_by_disruption(simulation: Any, attempt: int) -> None:
    simulation.run(attempt)
    await simulation.settle()
    disrupt(simulation, attempt)
    simulation.end(attempt, "FAILED", "AppFailed", GONE)
    await simulation.after(400)


@pytest.mark.parametrize(
    "reason",
    [
        "EvictionByEvictionAPI",
        "PreemptionByScheduler",
        "DeletionByTaintManager",
        "DeletionByPodGC",
        "TerminationByKubelet",
    ],
)
async def test_a_disruption_does_not_count_against_the_limit_of_failures(simulation: Any, reason: str) -> None:
    await simulation.submit_running(backoffLimit=0)
    disrupt(simulation, 1, reason)
    simulation.end(1, "FAILED", "AppFailed", GONE)
    await simulation.after(60)
    assert simulation.attempts() == ["red-a02"]
    status = simulation.status()
    (failure,) = status.failures
    assert (failure.reason, failure.counted) == ("Preempted", False)
    assert (status.failures_counted, status.disruptions_counted) == (0, 1)


async def test_a_limit_of_its_own_ends_a_job_that_is_disrupted_without_end(simulation: Any) -> None:
    simulation.submit(backoffLimit=0, disruptionLimit=7)
    await simulation.settle()
    for attempt in range(1, 9):
        assert simulation.attempts() == [f"red-a{attempt:02d}"]
        await end_by_disruption(simulation, attempt)
    failed = simulation.condition("Failed")
    assert (failed.status, failed.reason) == ("True", "Preempted")
    assert "spec.disruptionLimit is 7" in failed.message
    assert simulation.status().disruptions_counted == 8


@pytest.mark.parametrize(
    ("action", "failed", "said"),
    [
        ("Fail", "True", "spec.failurePolicy says Fail"),
        ("Retry", "True", "spec.backoffLimit is 0"),
        ("RetryIgnoreLimit", "False", ""),
    ],
)
async def test_a_rule_decides_what_a_disruption_is(simulation: Any, action: str, failed: str, said: str) -> None:
    rules = {"rules": [{"onReasons": ["Preempted"], "action": action}]}
    simulation.submit(backoffLimit=0, failurePolicy=rules)
    await simulation.settle()
    await end_by_disruption(simulation, 1)
    assert simulation.condition("Failed").status == failed
    assert said in simulation.condition("Failed").message


@pytest.mark.parametrize("notices", [10, 50])
async def test_a_node_that_is_lost_with_a_trainer_pod_is_a_disruption_also_if_ray_notices_first(
    simulation: Any, notices: int
) -> None:
    await simulation.submit_running(backoffLimit=0)
    status = {"jobDeploymentStatus": "Failed", "jobStatus": "FAILED", "reason": "AppFailed", "message": GONE}
    simulation.cluster.change(RAYJOBS, NAMESPACE, "red-a01", status=status)
    await simulation.after(notices)
    assert not simulation.status().failures
    assert simulation.condition("Ready").reason == "WorkerLost"
    simulation.pod(1, "worker", {"conditions": UNREACHABLE})
    await simulation.settle()
    (failure,) = simulation.status().failures
    assert (failure.reason, failure.counted) == ("Preempted", False)
    assert "does not answer" in failure.message


async def test_a_node_that_is_lost_with_the_head_is_a_disruption(simulation: Any) -> None:
    await simulation.submit_running(backoffLimit=0)
    simulation.pod(1, "head", {"conditions": UNREACHABLE})
    simulation.head(1, False, "")
    await simulation.after(61)
    (failure,) = simulation.status().failures
    assert (failure.reason, failure.counted) == ("Preempted", False)


async def test_a_node_that_came_back_is_no_reason_of_a_later_failure(simulation: Any) -> None:
    await simulation.submit_running(backoffLimit=0)
    for conditions in (UNREACHABLE, [{**one, "status": "True"} for one in UNREACHABLE]):
        simulation.pod(1, "worker", {"conditions": conditions})
        await simulation.after(10)
    simulation.end(1, "FAILED", "AppFailed", "exit code 1")
    await simulation.settle()
    assert simulation.condition("Failed").reason == "ApplicationError"


async def test_a_pod_that_is_lost_while_its_node_answers_is_a_failure(simulation: Any) -> None:
    await simulation.submit_running(backoffLimit=0)
    simulation.end(1, "FAILED", "AppFailed", GONE)
    await simulation.after(59)
    assert not simulation.status().failures
    await simulation.after(2)
    assert (simulation.condition("Failed").status, simulation.condition("Failed").reason) == ("True", "WorkerLost")


async def test_a_running_attempt_has_one_budget_that_goes_with_its_cluster(simulation: Any) -> None:
    trainer = {"totalSteps": 10, "accelerator": {"vendor": "NVIDIA", "count": 2}}
    simulation.submit(trainer={**trainer, "replicas": 2}, rollout={"placement": "Separate"})
    await simulation.settle()
    assert simulation.cluster.all(POD_DISRUPTION_BUDGETS) == [], "without pods it would only raise alarms"
    simulation.run(1)
    await simulation.settle()
    (budget,) = simulation.cluster.all(POD_DISRUPTION_BUDGETS)
    assert budget["metadata"]["name"] == "red-a01-x1"
    assert budget["spec"]["minAvailable"] == 3, "the head and two trainer pods"
    simulation.edit(trainer={**trainer, "replicas": 5})
    simulation.start_operator()
    await simulation.settle()
    assert simulation.cluster.all(POD_DISRUPTION_BUDGETS) == [budget]
    (owner,) = budget["metadata"]["ownerReferences"]
    assert owner["uid"] == simulation.cluster.get(RAYCLUSTERS, NAMESPACE, "red-a01-x1")["metadata"]["uid"]
    simulation.cluster.remove(POD_DISRUPTION_BUDGETS, NAMESPACE, "red-a01-x1")
    await simulation.after(1200)
    assert simulation.cluster.all(POD_DISRUPTION_BUDGETS) == [], "an administrator drains the node"
    simulation.start_operator()
    await simulation.settle()
    assert simulation.cluster.all(POD_DISRUPTION_BUDGETS) == [], "it may take longer than an operator runs"


async def test_a_job_that_allows_disruptions_has_no_budget(simulation: Any) -> None:
    await simulation.submit_running(scheduling={"voluntaryDisruptions": "Allow"})
    assert simulation.cluster.all(POD_DISRUPTION_BUDGETS) == []


@pytest.mark.parametrize("error", [Forbidden("a policy says no"), KindAbsent("policy/v1")])
async def test_a_budget_that_is_refused_keeps_no_job_from_running(simulation: Any, error: Exception) -> None:
    asked = []

    def refuse(verb: str, kind: Any, name: str) -> Exception | None:
        if kind != POD_DISRUPTION_BUDGETS:
            return None
        asked.append(name)
        return error

    simulation.cluster.failures = refuse
    await simulation.submit_running()
    await simulation.after(3600)
    assert simulation.condition("Ready").status == "True"
    assert len(asked) == 1
    simulation.end(1)
    await simulation.settle()
    assert simulation.condition("Succeeded").status == "True"
