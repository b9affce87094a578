"""Attempts that fail: what ended them, how they are counted, and when the next one starts."""

from datetime import timedelta
from typing import Any

import pytest

from control.operator_core.pools import KEY, unscheduled, waits
from omni_operator.cluster.kinds import PODS, RAYCLUSTERS, RAYJOBS


async def test_a_lost_head_ends_the_attempt_and_the_next_waits_until_its_objects_are_deleted(simulation: Any) -> None:
    await simulation.submit_running(backoffLimit=2)
    simulation.report("checkpoint", path="/ckpt/red/checkpoints/step_000004")
    simulation.change(RAYCLUSTERS, metadata={"finalizers": ["ray.io/slow"]})
    simulation.lose_head(1)
    await simulation.after(120)
    failure = simulation.status().failures[0]
    assert (failure.reason, failure.attempt, failure.checkpoint) == ("HeadLost", 1, "step_000004")
    assert simulation.attempts() == []  # the first is deleted, its cluster lingers
    simulation.change(RAYCLUSTERS, metadata={"finalizers": []})
    await simulation.after(60)
    assert simulation.attempts() == ["red-a02"]
    simulation.run(2)
    await simulation.end_and_settle(2)
    status = simulation.status()
    assert status.is_true("Succeeded")
    assert (status.attempts, status.failures_counted) == (2, 1)


@pytest.mark.parametrize("ahead", [-600, -90, 0, 90, 600])
async def test_a_head_that_is_briefly_not_ready_is_not_lost(simulation: Any, ahead: int) -> None:
    """Whatever the clock of KubeRay says, here so many seconds ahead of the operator's."""
    simulation.skew = -timedelta(seconds=ahead)
    await simulation.submit_running(backoffLimit=0)
    for _ in range(2):
        simulation.head(1, False, "ContainersNotReady")
        await simulation.after(50)
        assert simulation.condition("Ready").reason == "HeadNotReady"
        simulation.head(1, True, "HeadPodRunningAndReady")
        await simulation.after(600)
        assert simulation.condition("Ready").status == "True"
    assert not simulation.status().failures
    simulation.head(1, False, "ContainersNotReady")
    await simulation.after(61)
    assert simulation.condition("Failed").reason == "HeadLost"


async def test_a_head_that_was_never_ready_is_not_lost(simulation: Any) -> None:
    await simulation.submit_starting()
    not_found = {"type": "HeadPodReady", "status": "False", "reason": "HeadPodNotFound"}
    simulation.change(RAYCLUSTERS, status={"conditions": [not_found]})
    await simulation.after(3600)
    assert not simulation.status().failures


@pytest.mark.parametrize(("limit", "attempts"), [(0, 1), (2, 3)])
async def test_failures_are_counted_against_the_limit(simulation: Any, limit: int, attempts: int) -> None:
    simulation.submit(backoffLimit=limit)
    for attempt in range(1, attempts + 1):
        await simulation.after(400)
        await simulation.run_and_settle(attempt)
        simulation.end(attempt, "FAILED", "AppFailed", "Job entrypoint command failed with exit code 1")
    await simulation.after(4000)
    status = simulation.status()
    assert status.attempts == attempts
    assert simulation.condition("Failed").reason == "ApplicationError"
    assert f"backoffLimit is {limit}" in simulation.condition("Failed").message
    assert [failure.attempt for failure in status.failures] == list(range(1, attempts + 1))


async def test_the_first_matching_rule_decides(simulation: Any) -> None:
    rules = [
        {"onReasons": ["HeadLost"], "action": "RetryIgnoreLimit"},
        {"onReasons": ["ApplicationError", "HeadLost"], "action": "Fail"},
    ]
    simulation.submit(failurePolicy={"rules": rules})
    for attempt in (1, 2):
        await simulation.after(400)
        await simulation.run_and_settle(attempt)
        simulation.lose_head(attempt)
    await simulation.after(400)
    assert simulation.attempts() == ["red-a03"]
    assert simulation.status().failures_counted == 0
    await simulation.run_and_settle(3)
    simulation.end(3, "FAILED", "AppFailed", "exit code 1")
    await simulation.after(400)
    assert simulation.condition("Failed").status == "True"
    assert "spec.failurePolicy says Fail" in simulation.condition("Failed").message


async def test_only_the_last_failures_are_kept_and_all_are_counted(simulation: Any) -> None:
    simulation.submit(backoffLimit=7)
    for attempt in range(1, 8):
        await simulation.after(400)
        await simulation.run_and_settle(attempt)
        simulation.end(attempt, "FAILED", "AppFailed", "exit code 1")
    await simulation.after(400)
    status = simulation.status()
    assert [failure.attempt for failure in status.failures] == [3, 4, 5, 6, 7]
    assert status.failures_counted == 7
    assert simulation.attempts() == ["red-a08"]


@pytest.mark.parametrize(
    ("status", "reason", "message"),
    [
        (
            unscheduled('0/3 nodes are available: persistentvolumeclaim "ckpt" not found.'),
            "ClaimNotFound",
            'persistentvolumeclaim "ckpt" not found; create it',
        ),
        (
            unscheduled("0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims."),
            "ClaimNotBound",
            "unbound immediate PersistentVolumeClaims.; kubectl get persistentvolumeclaims names",
        ),
        (
            waits("CreateContainerConfigError", 'secret "wandb" not found'),
            "CreateContainerConfigError",
            'container ray-worker: secret "wandb" not found',
        ),
    ],
)
async def test_a_missing_claim_or_secret_is_named(
    simulation: Any, status: dict[str, Any], reason: str, message: str
) -> None:
    await simulation.submit_starting()
    await simulation.pod_and_settle(1, "worker", status)
    assert simulation.condition("Ready").reason == reason
    assert message in simulation.condition("Ready").message
    assert simulation.event_reasons() == [reason]


async def test_a_trainer_warning_is_one_event_per_attempt_and_reason(simulation: Any) -> None:
    await simulation.submit_running(backoffLimit=1)
    for step in (3, 4):
        await simulation.report_and_settle(
            "warning", reason="SamplesCollapsed", message=f"step {step}: all samples of a prompt are alike"
        )
    simulation.report("warning", reason="CheckpointsSetAside", message="the newest checkpoint is damaged")
    await simulation.after(60)
    assert simulation.event_reasons() == ["Running", "SamplesCollapsed", "TrainerWarning"]
    notes = [event["note"] for event in simulation.events()]
    assert "attempt 1: step 3: all samples of a prompt are alike" in notes
    assert "attempt 1: CheckpointsSetAside: the newest checkpoint is damaged" in notes
    assert [warning.message for warning in simulation.status().warnings] == [
        "step 4: all samples of a prompt are alike",
        "the newest checkpoint is damaged",
    ]
    simulation.end(1, "FAILED", "AppFailed", "boom")
    await simulation.after(120)
    assert simulation.status().warnings == ()


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("Job entrypoint command failed with exit code 1, last logs: RuntimeError: boom", "ApplicationError"),
        ("Job entrypoint command failed with exit code 2, last logs: Could not override 'x'", "InvalidConfig"),
        ("last logs: torch.cuda.OutOfMemoryError: CUDA out of memory", "OutOfMemory"),
        ("last logs: NCCL watchdog: collective operation timeout", "CollectiveTimeout"),
        ("last logs: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus", "AcceleratorFault"),
        ("last logs: StaleSample: 3 of 8 samples carry weight version", "WeightSyncFailed"),
        ("Job entrypoint command failed with exit code -9, last logs: NCCL watchdog timeout", "OutOfMemory"),
        ("Job entrypoint command failed with exit code -15. No logs available.", "ApplicationError"),
        ("Job supervisor actor died: its node has died; (1) raylet crashes unexpectedly (OOM, etc.)", "WorkerLost"),
        ("RuntimeError: [/x/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.3]:6327.", "WorkerLost"),
        (
            "RuntimeError: [/x/gloo/transport/tcp/pair.cc:537] Read error [10.0.0.3]:1: Connection reset by peer",
            "WorkerLost",
        ),
        ("DistBackendError: NCCL error: ncclRemoteError: A call failed, possibly a remote process ended", "WorkerLost"),
    ],
)
async def test_the_log_decides_the_reason_of_a_failure(simulation: Any, message: str, reason: str) -> None:
    await simulation.submit_running()
    simulation.end(1, "FAILED", "AppFailed", message)
    await simulation.after(61 if reason == "WorkerLost" else 0)
    assert simulation.condition("Failed").reason == reason


async def test_what_ended_the_pods_that_a_queue_took_is_no_reason_of_a_later_failure(simulation: Any) -> None:
    await simulation.submit_running(backoffLimit=0)
    killed = {"terminated": {"reason": "OOMKilled", "exitCode": 137, "message": ""}}
    simulation.pod(1, "worker", {"phase": "Failed", "containerStatuses": [{"name": "ray", "state": killed}]})
    simulation.report("error", message="2 rollout replicas are left", reason="WorkerLost")
    stopped = {"jobDeploymentStatus": "Suspended", "jobStatus": "", "startTime": None}
    simulation.change(RAYJOBS, spec={"suspend": True}, status=stopped)
    for role in ("head", "worker"):
        simulation.cluster.remove(PODS, KEY[0], f"red-a01-x1-{role}")
    simulation.cluster.remove(RAYCLUSTERS, KEY[0], "red-a01-x1")
    await simulation.after(60)
    simulation.change(RAYJOBS, spec={"suspend": False}, status={"jobDeploymentStatus": ""})
    await simulation.run_and_settle(1)
    simulation.report("start", total_steps=10)
    await simulation.end_and_settle(1, "FAILED", "AppFailed", "exit code 1")
    (failure,) = simulation.status().failures
    assert (failure.reason, failure.message) == ("ApplicationError", "exit code 1")
