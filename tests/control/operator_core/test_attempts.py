"""Attempts from the first to the last: made, watched, ended, tried again."""

from __future__ import annotations

from typing import Any

import pytest

from omni_operator.cluster.kinds import JOBS, PODS, RAYCLUSTERS, RAYJOBS, SERVICES

KEY = ("team-a", "red")
CONDITIONS = [
    "Admitted", "Ready", "WeightsInSync", "Updated", "ProgressStalled", "Suspended", "Succeeded", "Failed",
    "ResultsKept", "AcceleratorChosen",
]  # fmt: skip


async def test_a_job_is_run_to_success(world: Any) -> None:
    world.submit()
    await world.settle()
    status = world.status()
    assert [condition.type for condition in status.conditions] == CONDITIONS
    assert {condition.observed_generation for condition in status.conditions} == {1}
    assert world.attempts() == ["red-a01"]
    assert status.attempts == 1
    world.run(1)
    await world.settle()
    assert world.condition("Ready").status == "True"
    assert world.condition("WeightsInSync").reason == "NoReports"
    world.end(1)
    await world.settle()
    assert world.condition("Succeeded").status == "True"
    assert world.status().completion_time
    assert world.told() == ["Running", "Succeeded"]


async def test_what_the_author_of_a_job_would_not_want_is_a_condition_and_an_event(world: Any) -> None:
    world.submit(checkpoint={}, trainer={"totalSteps": 10}, rollout={})
    await world.settle()
    assert (world.condition("ResultsKept").status, world.condition("ResultsKept").reason) == (
        "False", "ResultsOnEmptyDir",
    )  # fmt: skip
    assert "spec.checkpoint.claimName is not given" in world.condition("ResultsKept").message
    assert (world.condition("AcceleratorChosen").status, world.condition("AcceleratorChosen").reason) == (
        "False", "NoVendor",
    )  # fmt: skip
    assert sorted(world.told()) == ["NoVendor", "ResultsOnEmptyDir"]
    world.run(1)
    await world.settle()
    assert sorted(world.told()) == ["NoVendor", "ResultsOnEmptyDir", "Running"], "said once"


async def test_a_job_that_keeps_its_results_says_so(world: Any) -> None:
    world.submit()
    await world.settle()
    assert (world.condition("ResultsKept").status, world.condition("AcceleratorChosen").reason) == ("True", "NVIDIA")
    assert world.told() == []


async def test_creating_costs_few_calls_and_rest_costs_none(world: Any) -> None:
    world.submit()
    await world.settle()
    counts = world.cluster.counts()
    assert counts == {
        ("patch", "diffusionrljobs"): 1, ("apply", "services"): 1, ("apply", "networkpolicies"): 1,
        ("apply", "configmaps"): 1, ("apply", "rayjobs"): 1, ("apply_status", "diffusionrljobs"): 1,
    }  # fmt: skip
    world.run(1)
    await world.settle()
    world.cluster.counts()
    for _ in range(5):
        await world.reconcile()
        await world.after(600)
    assert not world.cluster.counts()


async def test_a_restart_writes_nothing(world: Any) -> None:
    world.submit()
    await world.settle()
    world.run(1)
    await world.settle()
    world.report(step=3, **{"weights/version": 3, "weights/min_replica_version": 3})
    await world.after(60)
    world.cluster.counts()
    world.start_operator()
    await world.settle()
    assert world.status().progress.global_step == 3
    assert ("apply", "rayjobs") not in world.cluster.counts()


async def test_a_lost_head_ends_the_attempt_and_the_next_one_waits_until_nothing_is_left(world: Any) -> None:
    world.submit(backoffLimit=2)
    await world.settle()
    world.run(1)
    await world.settle()
    world.report("checkpoint", path="/ckpt/red/checkpoints/step_000004")
    world.cluster.change(RAYCLUSTERS, KEY[0], "red-a01-x1", metadata={"finalizers": ["ray.io/slow"]})
    world.lose_head(1)
    await world.after(120)
    failure = world.status().failures[0]
    assert (failure.reason, failure.attempt, failure.checkpoint) == ("HeadLost", 1, "step_000004")
    assert world.attempts() == []  # the first is deleted, its cluster lingers
    world.cluster.change(RAYCLUSTERS, KEY[0], "red-a01-x1", metadata={"finalizers": []})
    await world.after(60)
    assert world.attempts() == ["red-a02"]
    world.run(2)
    world.end(2)
    await world.settle()
    status = world.status()
    assert status.is_true("Succeeded")
    assert (status.attempts, status.failures_counted) == (2, 1)


async def test_a_head_that_is_not_ready_for_a_moment_is_waited_for(world: Any) -> None:
    world.submit()
    await world.settle()
    world.run(1)
    await world.settle()
    world.head(1, False, "ContainersNotReady")
    await world.after(50)
    assert world.condition("Ready").reason == "HeadNotReady"
    world.head(1, True, "HeadPodRunningAndReady")
    await world.after(600)
    assert world.condition("Ready").status == "True"
    assert not world.status().failures
    world.head(1, False, "ContainersNotReady")
    await world.after(61)
    assert world.status().failures[0].reason == "HeadLost"


async def test_a_head_that_never_was_ready_is_not_lost(world: Any) -> None:
    world.submit()
    await world.settle()
    world.start(1)
    world.cluster.change(
        RAYCLUSTERS, KEY[0], "red-a01-x1",
        status={"conditions": [{"type": "HeadPodReady", "status": "False", "reason": "HeadPodNotFound"}]},
    )  # fmt: skip
    await world.after(3600)
    assert not world.status().failures


@pytest.mark.parametrize(("limit", "attempts"), [(0, 1), (2, 3)])
async def test_failures_are_counted_against_the_limit(world: Any, limit: int, attempts: int) -> None:
    world.submit(backoffLimit=limit)
    for attempt in range(1, attempts + 1):
        await world.after(400)
        world.run(attempt)
        await world.settle()
        world.end(attempt, "FAILED", "AppFailed", "Job entrypoint command failed with exit code 1")
    await world.after(4000)
    status = world.status()
    assert status.attempts == attempts
    assert world.condition("Failed").reason == "ApplicationError"
    assert f"backoffLimit is {limit}" in world.condition("Failed").message
    assert [failure.attempt for failure in status.failures] == list(range(1, attempts + 1))


async def test_rules_decide_in_their_order(world: Any) -> None:
    rules = [
        {"onReasons": ["HeadLost"], "action": "RetryIgnoreLimit"},
        {"onReasons": ["ApplicationError", "HeadLost"], "action": "Fail"},
    ]
    world.submit(failurePolicy={"rules": rules})
    for attempt in (1, 2):
        await world.after(400)
        world.run(attempt)
        await world.settle()
        world.lose_head(attempt)
    await world.after(400)
    assert world.attempts() == ["red-a03"]
    assert world.status().failures_counted == 0
    world.run(3)
    await world.settle()
    world.end(3, "FAILED", "AppFailed", "exit code 1")
    await world.after(400)
    assert world.condition("Failed").status == "True"
    assert "spec.failurePolicy says Fail" in world.condition("Failed").message


async def test_only_the_last_failures_are_kept_and_all_are_counted(world: Any) -> None:
    world.submit(backoffLimit=7)
    for attempt in range(1, 8):
        await world.after(400)
        world.run(attempt)
        await world.settle()
        world.end(attempt, "FAILED", "AppFailed", "exit code 1")
    await world.after(400)
    status = world.status()
    assert [failure.attempt for failure in status.failures] == [3, 4, 5, 6, 7]
    assert status.failures_counted == 7
    assert world.attempts() == ["red-a08"]


async def test_an_image_that_cannot_be_pulled_is_named_within_two_minutes(world: Any) -> None:
    world.submit()
    await world.settle()
    world.start(1)
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "nope:1"'}}
    world.pod(1, "worker", {"containerStatuses": [{"name": "ray-worker", "state": waiting}]})
    await world.settle()
    assert world.condition("Ready").reason == "ImagePullBackOff"
    assert "nope:1" in world.condition("Ready").message
    await world.after(120)
    assert world.condition("Failed").reason == "ImagePullFailed"
    assert "nope:1" in world.condition("Failed").message
    assert world.attempts() == []  # it would have waited for ever


@pytest.mark.parametrize(
    ("status", "reason", "said"),
    [
        ({"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                          "message": '0/3 nodes are available: persistentvolumeclaim "ckpt" not found.'}]},
         "ClaimNotFound", 'persistentvolumeclaim "ckpt" not found; create it'),
        ({"containerStatuses": [{"name": "ray-worker", "state": {"waiting": {
            "reason": "CreateContainerConfigError", "message": 'secret "wandb" not found'}}}]},
         "CreateContainerConfigError", 'container ray-worker: secret "wandb" not found'),
    ],
)  # fmt: skip
async def test_a_claim_or_a_secret_that_does_not_exist_is_named(
    world: Any, status: dict[str, Any], reason: str, said: str
) -> None:
    world.submit()
    await world.settle()
    world.start(1)
    world.pod(1, "worker", status)
    await world.settle()
    assert world.condition("Ready").reason == reason
    assert said in world.condition("Ready").message
    assert world.told() == [reason]


async def test_a_warning_of_the_trainer_is_an_event_once_for_each_attempt(world: Any) -> None:
    world.submit(backoffLimit=1)
    await world.settle()
    world.run(1)
    await world.settle()
    for step in (3, 4):
        world.report("warning", reason="SamplesCollapsed", message=f"step {step}: all samples of a prompt are alike")
        await world.settle()
    world.report("warning", reason="CheckpointsSetAside", message="the newest checkpoint is damaged")
    await world.after(60)
    assert world.told() == ["Running", "SamplesCollapsed", "TrainerWarning"]
    notes = [event["note"] for event in world.notes()]
    assert "attempt 1: step 3: all samples of a prompt are alike" in notes
    assert "attempt 1: CheckpointsSetAside: the newest checkpoint is damaged" in notes
    assert [found.message for found in world.status().warnings] == [
        "step 4: all samples of a prompt are alike", "the newest checkpoint is damaged",
    ]  # fmt: skip
    world.end(1, "FAILED", "AppFailed", "boom")
    await world.after(120)
    assert world.status().warnings == ()


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("Job entrypoint command failed with exit code 1, last logs: RuntimeError: boom", "ApplicationError"),
        ("Job entrypoint command failed with exit code 2, last logs: Could not override 'x'", "InvalidConfig"),
        ("last logs: torch.cuda.OutOfMemoryError: CUDA out of memory", "OutOfMemory"),
        ("last logs: NCCL watchdog: collective operation timeout", "CollectiveTimeout"),
        ("last logs: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus", "AcceleratorFault"),
        ("last logs: StaleSample: 3 of 8 samples carry weight version", "WeightSyncFailed"),
    ],
)
async def test_failures_are_told_apart_by_their_words(world: Any, message: str, reason: str) -> None:
    world.submit()
    await world.settle()
    world.run(1)
    await world.settle()
    world.end(1, "FAILED", "AppFailed", message)
    await world.settle()
    assert world.condition("Failed").reason == reason


async def test_what_a_pod_showed_before_it_vanished_explains_the_failure(world: Any) -> None:
    world.submit()
    await world.settle()
    world.run(1)
    await world.settle()
    target = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": "by urgent"}
    world.pod(1, "worker", {"conditions": [target]})
    world.cluster.remove(PODS, KEY[0], "red-a01-x1-worker")
    await world.settle()
    world.end(1, "FAILED", "AppFailed", "exit code 1")
    await world.settle()
    assert world.status().failures[0].reason == "Preempted"


async def test_a_rayjob_that_somebody_deleted_is_made_again_under_a_new_name(world: Any) -> None:
    world.submit()
    await world.settle()
    world.run(1)
    await world.settle()
    world.cluster.remove(RAYJOBS, KEY[0], "red-a01")
    await world.after(60)
    assert world.attempts() == ["red-a02"]
    assert world.status().failures[0].reason == "ChildDeleted"
    assert world.status().failures_counted == 0


async def test_a_shared_object_that_somebody_changed_is_put_right(world: Any) -> None:
    world.submit()
    await world.settle()
    world.run(1)
    await world.settle()
    rendered = world.cluster.get(SERVICES, KEY[0], "red-head")["spec"]
    world.cluster.change(SERVICES, KEY[0], "red-head", spec={"selector": {"app": "mine"}, "ports": []})
    await world.settle()
    assert world.cluster.get(SERVICES, KEY[0], "red-head")["spec"]["ports"] == rendered["ports"]
    world.cluster.remove(SERVICES, KEY[0], "red-head")
    await world.settle()
    assert world.cluster.get(SERVICES, KEY[0], "red-head")["spec"] == rendered
    world.cluster.change(SERVICES, KEY[0], "red-head", spec={"sessionAffinity": "None"})  # defaults are not drift
    world.cluster.counts()
    await world.settle()
    assert not world.cluster.counts()


async def test_an_edit_takes_effect_with_the_next_attempt_and_says_so(world: Any) -> None:
    world.submit(backoffLimit=1)
    await world.settle()
    world.run(1)
    await world.settle()
    world.edit(trainer={"totalSteps": 20})
    await world.settle()
    assert world.condition("Updated").reason == "NextAttempt"
    assert "total_training_steps=10" in world.cluster.get(RAYJOBS, KEY[0], "red-a01")["spec"]["entrypoint"]
    world.lose_head(1)
    await world.after(60)
    assert "total_training_steps=20" in world.cluster.get(RAYJOBS, KEY[0], "red-a02")["spec"]["entrypoint"]
    assert world.condition("Updated").status == "True"


async def test_deadlines(world: Any) -> None:
    world.submit(activeDeadlineSeconds=100, preRunningDeadlineSeconds=50, backoffLimit=5)
    await world.settle()
    world.start(1)
    await world.after(51)
    assert world.status().failures[0].reason == "PreRunningDeadlineExceeded"
    await world.after(10)
    world.run(2)
    await world.after(60)
    assert world.condition("Failed").reason == "DeadlineExceeded"
    assert world.attempts() == []


async def test_waiting_in_a_queue_does_not_use_up_the_deadline_of_starting(world: Any) -> None:
    world.submit(preRunningDeadlineSeconds=50)
    await world.settle()
    world.cluster.change(
        RAYJOBS, KEY[0], "red-a01", spec={"suspend": True}, status={"jobDeploymentStatus": "Suspended"}
    )
    await world.after(1000)
    assert world.condition("Admitted").reason == "Queued"
    world.cluster.change(
        RAYJOBS, KEY[0], "red-a01", spec={"suspend": False}, status={"jobDeploymentStatus": "Initializing"}
    )
    await world.after(49)
    assert not world.status().failures
    await world.after(2)
    assert world.status().failures[0].reason == "PreRunningDeadlineExceeded"


async def test_the_job_is_deleted_when_its_time_to_live_is_over(world: Any) -> None:
    world.submit(ttlSecondsAfterFinished=100)
    await world.settle()
    world.run(1)
    world.end(1)
    await world.after(90)
    assert world.cluster.get(JOBS, *KEY) is not None
    await world.after(20)
    assert world.cluster.get(JOBS, *KEY) is None
    assert world.attempts() == []
