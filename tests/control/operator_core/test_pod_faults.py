"""Faults of nodes, pods and users, as kubelets, the scheduler and KubeRay write them into statuses; disruptions."""

from datetime import timedelta
from typing import Any

import pytest

from control.operator_core.pools import KEY, unscheduled, waits
from omni_operator.cluster.errors import Forbidden, KindAbsent
from omni_operator.cluster.kinds import POD_DISRUPTION_BUDGETS, PODS, RAYCLUSTERS, RAYJOBS


def disrupted(reason: str, message: str) -> dict[str, Any]:
    target = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}
    return {"phase": "Failed", "conditions": [target]}


def ended(reason: str, code: int, message: str = "") -> dict[str, Any]:
    state = {"terminated": {"reason": reason, "exitCode": code, "message": message}}
    return {"phase": "Failed", "containerStatuses": [{"name": "ray-worker", "state": state}]}


@pytest.mark.parametrize(
    ("pod", "reason", "message"),
    [
        (disrupted("DeletionByTaintManager", "taint node.kubernetes.io/unreachable"), "Preempted", "unreachable"),
        (disrupted("PreemptionByScheduler", "preempting to accommodate urgent"), "Preempted", "urgent"),
        (disrupted("TerminationByKubelet", "low on resource: ephemeral-storage"), "Preempted", "ephemeral-storage"),
        (ended("OOMKilled", 137), "OutOfMemory", "container ray-worker"),
        (ended("Error", 1, "NVRM: Xid (PCI:0000:3b:00): 79"), "AcceleratorFault", "Xid"),
    ],
    ids=["node lost", "preempted", "evicted by a full disk", "out of memory", "accelerator"],
)
async def test_the_state_of_a_pod_is_the_reason_of_the_failure(
    simulation: Any, pod: dict[str, Any], reason: str, message: str
) -> None:
    await simulation.submit_running(backoffLimit=1)
    await simulation.pod_and_settle(1, "worker", pod)
    simulation.cluster.remove(PODS, KEY[0], "red-a01-x1-worker")
    simulation.end(1, "FAILED", "AppFailed", "exit code 1")
    await simulation.after(60)
    (failure,) = simulation.status().failures
    assert failure.reason == reason
    assert message in failure.message
    assert simulation.attempts() == ["red-a02"]


async def test_pods_of_a_lost_node_delay_the_next_attempt_at_most_ten_minutes(simulation: Any) -> None:
    """The node's kubelet cannot confirm the deletion, so the pod stays until someone removes the node."""
    await simulation.submit_running(backoffLimit=1)
    simulation.cluster.change(PODS, KEY[0], "red-a01-x1-head", metadata={"finalizers": ["kubelet"]})
    silent = [{"type": "Ready", "status": "False"}, {"type": "ContainersReady", "status": "True"}]
    simulation.cluster.change(
        PODS, KEY[0], "red-a01-x1-head", spec={"nodeName": "gpu-3"}, status={"conditions": silent}
    )
    simulation.lose_head(1)
    await simulation.after(540)
    assert simulation.attempts() == []
    between = simulation.condition("Ready")
    assert between.reason == "BetweenAttempts"
    assert between.message.endswith("; node gpu-3 does not answer: delete it if it does not come back")
    await simulation.after(120)
    assert simulation.attempts() == ["red-a02"]


async def test_who_keeps_a_job_from_being_suspended_is_named(simulation: Any) -> None:
    await simulation.submit_running(suspendPolicy={"mode": "Immediate"})
    simulation.change(RAYJOBS, metadata={"finalizers": ["ray.io/rayjob-finalizer"]})
    simulation.edit(suspend=True)
    await simulation.after(60)
    suspended = simulation.condition("Suspended")
    assert (suspended.status, suspended.reason) == ("Unknown", "Stopping")
    assert suspended.message == "deleting the pods; KubeRay has not removed its finalizer from RayJob red-a01 yet"
    simulation.change(RAYJOBS, metadata={"finalizers": []})
    await simulation.settle()
    assert simulation.condition("Suspended").status == "True"


@pytest.mark.parametrize(
    ("reason", "message", "fails_at_once"),
    [
        ("ErrImagePull", "pull access denied, repository does not exist or may require authorization", False),
        ("ImagePullBackOff", 'Back-off pulling image "private.example/x:1": unauthorized', False),
        ("InvalidImageName", 'couldn\'t parse image name "Not An Image"', True),
    ],
    ids=["missing image pull secret", "backoff", "invalid name"],
)
async def test_an_image_that_cannot_be_pulled_ends_the_attempt(
    simulation: Any, reason: str, message: str, fails_at_once: bool
) -> None:
    await simulation.submit_starting()
    await simulation.pod_and_settle(1, "worker", waits(reason, message))
    if not fails_at_once:
        assert simulation.condition("Ready").reason == "ImagePullBackOff"
        assert message in simulation.condition("Ready").message
        await simulation.after(61)
    assert simulation.condition("Failed").reason == "ImagePullFailed"
    assert message in simulation.condition("Failed").message
    assert simulation.attempts() == [], "the image stays missing"


async def test_a_pod_that_is_preempted_before_the_trainer_starts_is_waited_for_until_the_deadline(
    simulation: Any,
) -> None:
    """All pods were ready and KubeRay says Running, but Ray waits for the pod that KubeRay creates instead."""
    await simulation.submit_running(preRunningDeadlineSeconds=600, backoffLimit=1)
    simulation.change(RAYJOBS, status={"jobStatus": "PENDING"})
    simulation.change(RAYCLUSTERS, status={"readyWorkerReplicas": 0})
    await simulation.pod_and_settle(1, "worker", unscheduled("0/3 nodes: 3 no GPU"))
    assert (simulation.condition("Ready").reason, simulation.status().state) == ("Unschedulable", "Starting")
    await simulation.after(601)
    assert simulation.status().failures[0].reason == "Unschedulable"
    await simulation.after(60)
    assert simulation.attempts() == ["red-a02"]


@pytest.mark.parametrize(("waited", "reason"), [(True, "ApplicationError"), (False, "Preempted")])
async def test_a_pod_that_was_replaced_before_the_trainer_started_is_no_reason_of_its_failure(
    simulation: Any, waited: bool, reason: str
) -> None:
    await simulation.submit_running(preRunningDeadlineSeconds=600)
    if waited:
        simulation.change(RAYJOBS, status={"jobStatus": "PENDING"})
    await simulation.pod_and_settle(1, "worker", disrupted("PreemptionByScheduler", "preempting to accommodate urgent"))
    simulation.cluster.remove(PODS, KEY[0], "red-a01-x1-worker")
    await simulation.after(300)
    for message in ("", "Job is currently running."):
        simulation.change(RAYJOBS, status={"jobStatus": "RUNNING", "message": message})
        await simulation.after(301)
    assert (simulation.condition("Ready").status, simulation.status().failures) == ("True", ())
    await simulation.end_and_settle(1, "FAILED", "AppFailed", "exit code 1")
    assert simulation.status().failures[0].reason == reason


async def test_a_pod_that_was_lost_before_the_trainer_started_is_the_reason_if_it_never_does(simulation: Any) -> None:
    await simulation.submit_running()
    simulation.change(RAYJOBS, status={"jobStatus": "PENDING"})
    await simulation.pod_and_settle(1, "worker", disrupted("PreemptionByScheduler", "preempting to accommodate urgent"))
    simulation.cluster.remove(PODS, KEY[0], "red-a01-x1-worker")
    await simulation.settle()
    simulation.change(RAYJOBS, status={"message": "Job has not started yet."})
    await simulation.settle()
    await simulation.end_and_settle(1, "FAILED", "AppFailed", "exit code 1")
    assert simulation.status().failures[0].reason == "Preempted"


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        ('pods "red" is forbidden: exceeded quota: gpus, requested: nvidia.com/gpu=8', "QuotaExceeded"),
        ('pods "red" is forbidden: failed quota: cpus: must specify limits.cpu for: log', "QuotaExceeded"),
        ('admission webhook "pods.example.com" denied the request: no label', "PodsRefused"),
        ('pods "red" is forbidden: maximum memory usage per Container is 1Gi, but limit is 2Gi', "PodsRefused"),
    ],
)
async def test_pods_that_are_refused_are_named(simulation: Any, failure: str, reason: str) -> None:
    await simulation.submit_starting()
    condition = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": failure}
    simulation.change(RAYCLUSTERS, status={"conditions": [condition]})
    await simulation.settle()
    assert simulation.condition("Ready").reason == reason
    assert failure in simulation.condition("Ready").message


@pytest.mark.parametrize(("runs", "reason"), [(False, "StartFailed"), (True, "WorkerLost")])
async def test_a_container_that_keeps_restarting_ends_the_attempt(simulation: Any, runs: bool, reason: str) -> None:
    await simulation.submit_and_settle()
    simulation.run(1) if runs else simulation.start(1)
    state = {
        "name": "ray-worker",
        "restartCount": 4,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": {"exitCode": 3, "reason": "Error", "message": "No space left on device"}},
    }
    await simulation.pod_and_settle(1, "worker", {"containerStatuses": [state]})
    assert simulation.condition("Failed").reason == reason
    assert "No space left on device" in simulation.condition("Failed").message


async def test_a_full_volume_ends_the_attempt_with_the_trainers_error(simulation: Any) -> None:
    await simulation.submit_running()
    simulation.report("error", message="OSError: [Errno 28] No space left on device: '/ckpt/step_000004'")
    await simulation.end_and_settle(1, "FAILED", "AppFailed", "Job entrypoint command failed with exit code 1")
    assert simulation.condition("Failed").reason == "ApplicationError"
    assert "No space left on device" in simulation.condition("Failed").message


async def test_a_rayjob_that_is_there_again_after_its_attempt_is_deleted(simulation: Any) -> None:
    """etcd is restored from a snapshot before the operator has observed it, so two attempts exist."""
    await simulation.submit_running(backoffLimit=1)
    saved = simulation.cluster.save()
    simulation.lose_head(1)
    await simulation.settle()
    assert simulation.attempts() == []
    simulation.cluster.restore(saved)
    await simulation.after(10)
    assert simulation.attempts() == ["red-a01", "red-a02"]
    simulation.start_operator()
    await simulation.settle()
    assert simulation.attempts() == ["red-a02"]
    assert [body["metadata"]["name"] for body in simulation.cluster.all(RAYCLUSTERS)] == []
    await simulation.run_and_settle(2)
    await simulation.end_and_settle(2)
    assert simulation.condition("Succeeded").status == "True"
    assert simulation.status().attempts == 2


async def test_a_clock_that_is_set_back_makes_no_pause_between_attempts_longer(simulation: Any) -> None:
    simulation.skew = timedelta(hours=1)
    await simulation.submit_running(backoffLimit=1)
    simulation.lose_head(1)
    await simulation.settle()
    assert simulation.attempts() == []
    simulation.skew = timedelta()
    simulation.wakes[KEY] = simulation.now
    await simulation.settle()
    assert simulation.attempts() == ["red-a02"]
    assert [failure.reason for failure in simulation.status().failures] == ["HeadLost"]


async def test_a_clock_that_is_set_back_makes_no_pause_after_a_refusal_longer(simulation: Any) -> None:
    simulation.skew = timedelta(hours=1)
    simulation.refuse(Forbidden("no"), RAYJOBS)
    await simulation.submit_and_settle()
    assert simulation.condition("Ready").reason == "Forbidden"
    simulation.skew = timedelta()
    simulation.allow()
    simulation.wakes[KEY] = simulation.now
    await simulation.settle()
    assert simulation.attempts() == ["red-a01"]


async def test_a_clock_that_is_set_back_makes_no_wait_for_a_checkpoint_longer(simulation: Any) -> None:
    simulation.skew = timedelta(hours=1)
    await simulation.submit_running(suspendPolicy={"graceSeconds": 30})
    simulation.report(step=5)
    await simulation.edit_and_settle(suspend=True)
    assert simulation.condition("Suspended").reason == "CheckpointRequested"
    simulation.skew = timedelta()
    simulation.wakes[KEY] = simulation.now
    await simulation.after(31)
    assert simulation.condition("Suspended").status == "True"


@pytest.mark.parametrize("seconds", [-3600, 3600], ids=["back", "forwards"])
async def test_a_clock_that_jumps_fails_no_job_without_a_deadline(simulation: Any, seconds: int) -> None:
    await simulation.submit_running(backoffLimit=0, activeDeadlineSeconds=7200, ttlSecondsAfterFinished=7200)
    for skew in (seconds, 0):
        simulation.skew = timedelta(seconds=skew)
        simulation.wakes[KEY] = simulation.now
        await simulation.after(60)
        assert simulation.condition("Ready").status == "True"
    await simulation.end_and_settle(1)
    for skew in (seconds, 0):
        simulation.skew = timedelta(seconds=skew)
        simulation.wakes[KEY] = simulation.now
        await simulation.after(60)
        assert simulation.condition("Succeeded").status == "True"
    assert simulation.attempts() == ["red-a01"]
    assert simulation.status().failures == ()


GONE = "Job supervisor actor died: its node has died"
UNREACHABLE = [{"type": "Ready", "status": "False"}, {"type": "ContainersReady", "status": "True"}]


async def end_by_disruption(simulation: Any, attempt: int) -> None:
    """The trainer's pod is told to end, and does."""
    await simulation.run_and_settle(attempt)
    simulation.pod(attempt, "worker", disrupted("EvictionByEvictionAPI", "node drained"))
    simulation.cluster.remove(PODS, KEY[0], f"red-a{attempt:02d}-x1-worker")
    simulation.end(attempt, "FAILED", "AppFailed", GONE)
    await simulation.after(400)


async def test_a_disruption_does_not_count_against_the_limit_of_failures(simulation: Any) -> None:
    await simulation.submit_running(backoffLimit=0)
    await end_by_disruption(simulation, 1)
    assert simulation.attempts() == ["red-a02"]
    status = simulation.status()
    (failure,) = status.failures
    assert (failure.reason, failure.counted) == ("Preempted", False)
    assert (status.failures_counted, status.disruptions_counted) == (0, 1)


async def test_a_limit_of_its_own_ends_a_job_that_is_disrupted_without_end(simulation: Any) -> None:
    await simulation.submit_and_settle(backoffLimit=0, disruptionLimit=7)
    for attempt in range(1, 9):
        assert simulation.attempts() == [f"red-a{attempt:02d}"]
        await end_by_disruption(simulation, attempt)
    failed = simulation.condition("Failed")
    assert (failed.status, failed.reason) == ("True", "Preempted")
    assert "spec.disruptionLimit is 7" in failed.message
    assert simulation.status().disruptions_counted == 8


@pytest.mark.parametrize(
    ("action", "failed", "message"),
    [
        ("Fail", "True", "spec.failurePolicy says Fail"),
        ("Retry", "True", "spec.backoffLimit is 0"),
        ("RetryIgnoreLimit", "False", ""),
    ],
)
async def test_a_rule_decides_what_a_disruption_is(simulation: Any, action: str, failed: str, message: str) -> None:
    rules = {"rules": [{"onReasons": ["Preempted"], "action": action}]}
    await simulation.submit_and_settle(backoffLimit=0, failurePolicy=rules)
    await end_by_disruption(simulation, 1)
    assert simulation.condition("Failed").status == failed
    assert message in simulation.condition("Failed").message


@pytest.mark.parametrize("notices", [10, 50])
async def test_a_node_that_is_lost_with_a_trainer_pod_is_a_disruption_also_if_ray_notices_first(
    simulation: Any, notices: int
) -> None:
    await simulation.submit_running(backoffLimit=0)
    status = {"jobDeploymentStatus": "Failed", "jobStatus": "FAILED", "reason": "AppFailed", "message": GONE}
    simulation.change(RAYJOBS, status=status)
    await simulation.after(notices)
    assert not simulation.status().failures
    assert simulation.condition("Ready").reason == "WorkerLost"
    await simulation.pod_and_settle(1, "worker", {"conditions": UNREACHABLE})
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
    for conditions in (UNREACHABLE, [{**condition, "status": "True"} for condition in UNREACHABLE]):
        simulation.pod(1, "worker", {"conditions": conditions})
        await simulation.after(10)
    await simulation.end_and_settle(1, "FAILED", "AppFailed", "exit code 1")
    assert simulation.condition("Failed").reason == "ApplicationError"


async def test_a_pod_that_is_lost_while_its_node_answers_is_a_failure(simulation: Any) -> None:
    await simulation.submit_running(backoffLimit=0)
    simulation.end(1, "FAILED", "AppFailed", GONE)
    await simulation.after(59)
    assert not simulation.status().failures
    await simulation.after(2)
    assert simulation.verdict("Failed") == ("True", "WorkerLost")


async def test_a_running_attempt_has_one_budget_that_goes_with_its_cluster(simulation: Any) -> None:
    trainer = {"totalSteps": 10, "accelerator": {"vendor": "NVIDIA", "count": 2}}
    await simulation.submit_and_settle(trainer={**trainer, "replicas": 2}, rollout={"placement": "Separate"})
    assert simulation.cluster.all(POD_DISRUPTION_BUDGETS) == [], "without pods it would only raise alarms"
    await simulation.run_and_settle(1)
    (budget,) = simulation.cluster.all(POD_DISRUPTION_BUDGETS)
    assert budget["metadata"]["name"] == "red-a01-x1"
    assert budget["spec"]["minAvailable"] == 3, "the head and two trainer pods"
    simulation.edit(trainer={**trainer, "replicas": 5})
    simulation.start_operator()
    await simulation.settle()
    assert simulation.cluster.all(POD_DISRUPTION_BUDGETS) == [budget]
    (owner,) = budget["metadata"]["ownerReferences"]
    assert owner["uid"] == simulation.cluster.get(RAYCLUSTERS, KEY[0], "red-a01-x1")["metadata"]["uid"]
    simulation.cluster.remove(POD_DISRUPTION_BUDGETS, KEY[0], "red-a01-x1")
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
    simulation.refuse(error, POD_DISRUPTION_BUDGETS)
    await simulation.submit_running()
    await simulation.after(3600)
    assert simulation.condition("Ready").status == "True"
    assert simulation.cluster.counts()["create", "poddisruptionbudgets"] == 1
    await simulation.end_and_settle(1)
    assert simulation.condition("Succeeded").status == "True"
