"""`status.state` and `status.reason`: one word each, from the conditions alone."""

import itertools
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import get_args

import pytest

from omni_operator.api.status import CONDITION_TYPES, Condition, Failure, JobState, Progress, Status
from omni_operator.status.decisions.situation import (
    BetweenAttempts,
    Creating,
    Failing,
    Suspended,
    Suspending,
    Unfinished,
)
from omni_operator.status.decisions.snapshot import Snapshot
from omni_operator.status.decisions.verdict import InProgress, Stage, Succeeded
from omni_operator.status.observed.job_facts import JobFacts
from omni_operator.status.observed.observation import Attempt, Observation, ObservedRayCluster, Refusal, TrainerReport
from omni_operator.status.observed.timestamps import format_timestamp
from omni_operator.status.reasons.names import Action
from omni_operator.status.report.conditions import derive_conditions
from omni_operator.status.report.job_status import with_state

NOW = datetime(2026, 1, 1, tzinfo=UTC)
FACTS = JobFacts(uid="u", generation=1, created=NOW)
QUOTA = Refusal(kind="QuotaExceeded", text="exceeded quota")
FAILURE = Failure(attempt=1, reason="HeadLost")
SERVING = ObservedRayCluster(
    name="c", uid="c", attempt=1, created=NOW, head_ready=True, desired_workers=1, ready_workers=1
)
BEHIND = TrainerReport(attempt=1, at=NOW, version=5, min_version=1)


def failing(final: bool) -> Failing:
    return Failing("HeadLost", "lost", Action.RETRY, "no retry" if final else "")


def state(
    situation: Unfinished,
    *,
    refusal: Refusal | None = None,
    cluster: ObservedRayCluster | None = SERVING,
    failures: tuple[Failure, ...] = (),
    reported: TrainerReport | None = None,
    silent: bool = False,
) -> tuple[JobState | None, str | None]:
    heard = NOW - timedelta(hours=1) if silent else NOW
    job = Snapshot(
        facts=FACTS,
        status=Status(attempts=1, failures=failures, progress=Progress(heartbeat_time=format_timestamp(heard))),
        observed=Observation(),
        attempt=Attempt(number=1, cluster=cluster, report=replace(reported, at=heard) if reported else None),
        now=NOW,
    )
    conditions = derive_conditions(job, situation, refusal)
    derived = with_state(job.status.model_copy(update={"conditions": conditions}))
    return derived.state, derived.reason


RUNNING = InProgress(Stage.RUNNING)
CASES = {
    "creating": (Creating(1), {}, "Starting", "Starting"),
    "refused": (Creating(1), {"refusal": QUOTA}, "Pending", "QuotaExceeded"),
    "refused again": (Creating(2), {"refusal": QUOTA, "failures": (FAILURE,)}, "Pending", "QuotaExceeded"),
    "queued": (InProgress(Stage.QUEUED), {}, "Queued", "Queued"),
    "starting": (InProgress(Stage.STARTING), {}, "Starting", "Starting"),
    "image": (InProgress(Stage.STARTING, "ImagePullBackOff", "x"), {}, "Starting", "ImagePullBackOff"),
    "service refused": (InProgress(Stage.STARTING), {"refusal": QUOTA}, "Starting", "QuotaExceeded"),
    "running": (RUNNING, {}, "Running", "TrainerAndRolloutsServing"),
    "worker gone": (RUNNING, {"cluster": None, "silent": True}, "Running", "PodsNotReady"),
    "head": (InProgress(Stage.RUNNING, "HeadNotReady", "x"), {}, "Running", "HeadNotReady"),
    "stalled": (RUNNING, {"silent": True, "reported": BEHIND}, "Running", "HeartbeatStopped"),
    "behind": (RUNNING, {"reported": BEHIND}, "Running", "ReplicaBehind"),
    "failing": (failing(False), {"failures": (FAILURE,)}, "Retrying", "HeadLost"),
    "pause": (BetweenAttempts("pause"), {"failures": (FAILURE,)}, "Retrying", "HeadLost"),
    "resumed": (BetweenAttempts("objects are left"), {}, "Pending", "BetweenAttempts"),
    "saving": (Suspending("CheckpointRequested", "x"), {}, "Suspending", "CheckpointRequested"),
    "stopping": (Suspending("Stopping", "x"), {}, "Suspending", "Stopping"),
    "suspended": (Suspended(), {"failures": (FAILURE,)}, "Suspended", "Suspended"),
    "succeeded": (Succeeded(NOW), {"failures": (FAILURE,)}, "Succeeded", "AttemptSucceeded"),
    "failed": (failing(True), {"failures": (FAILURE,)}, "Failed", "HeadLost"),
}


@pytest.mark.parametrize("name", CASES)
def test_each_situation_has_one_state_and_its_reason(name: str) -> None:
    situation, arguments, expected, reason = CASES[name]
    assert state(situation, **arguments) == (expected, reason)


def test_every_situation_and_every_state_is_one_of_the_cases() -> None:
    assert {type(case[0]) for case in CASES.values()} == {*get_args(Unfinished)}
    assert {case[2] for case in CASES.values()} == set(get_args(JobState))


def test_every_combination_of_conditions_has_a_state_with_a_reason() -> None:
    kinds = ("Admitted", "Ready", "Suspended", "Succeeded", "Failed", "ProgressStalled", "WeightsInSync")
    others = tuple(Condition(type=kind, status="Unknown", reason="X") for kind in CONDITION_TYPES if kind not in kinds)
    for values in itertools.product(get_args(Condition.model_fields["status"].annotation), repeat=len(kinds)):
        for reason in ("Queued", "Running", "Starting", "BetweenAttempts", "Other"):
            varied = tuple(
                Condition(type=kind, status=value, reason=reason) for kind, value in zip(kinds, values, strict=True)
            )
            derived = with_state(Status(conditions=(*varied, *others)))
            assert derived.state in get_args(JobState)
            assert derived.reason == reason
            assert (derived.state == "Succeeded") == (values[3] == "True")
            assert (derived.state == "Failed") == (values[4] == "True" and values[3] != "True")


def test_a_job_that_was_never_passed_over_has_no_state() -> None:
    assert with_state(Status()) == Status()
