"""PURE: where a job stands -> its conditions, all of them every time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from omni_operator.api.job import NO_VENDOR, RESULTS_LOST
from omni_operator.api.status import CONDITION_TYPES, Condition, Status

from .job_facts import JobFacts
from .observation import Observation, Refusal, TrainerReport
from .situation import (
    Active,
    BetweenAttempts,
    Creating,
    Deleting,
    Failing,
    Finished,
    Invalid,
    Situation,
    Succeeding,
    Suspended,
    Suspending,
)
from .timestamps import format_timestamp, parse_timestamp
from .verdict import InProgress, Stage

Truth = Literal["True", "False", "Unknown"]
MESSAGE_LIMIT = 1024


@dataclass(frozen=True, slots=True)
class ConditionValue:
    """A condition without its times."""

    status: Truth
    reason: str
    message: str = ""


def true_because(reason: str, message: str = "") -> ConditionValue:
    """A condition with status True."""
    return ConditionValue("True", reason, message)


def false_because(reason: str, message: str = "") -> ConditionValue:
    """A condition with status False."""
    return ConditionValue("False", reason, message)


def unknown_because(reason: str, message: str = "") -> ConditionValue:
    """A condition with status Unknown."""
    return ConditionValue("Unknown", reason, message)


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """When the trainer of the running attempt was last heartbeat, and how long it may be silent.

    Attributes:
        at: None: never in this attempt.
        max_lag: versions that an engine may be behind.
        max_age: how long ago weights may have been sent.
    """

    at: datetime | None
    silence: timedelta
    max_lag: int = 1
    max_age: timedelta = timedelta.max


Table = Mapping[str, ConditionValue]


def derive_conditions(
    situation: Situation,
    observed: Observation,
    refusal: Refusal | None,
    updated: ConditionValue,
    heartbeat: Heartbeat,
    now: datetime,
) -> Table | None:
    """What every condition says; None where all stay as they are."""
    match situation:
        case Finished() | Deleting():
            return None
        case Invalid(text=text):
            refused = false_because("InvalidSpec", text)
            return _table(refused, refused, unknown_because("InvalidSpec"), updated=refused)
        case Creating(attempt=attempt):
            return _creating(attempt, refusal, updated)
        case Active(attempt=attempt, going=going):
            return _active(attempt, going, observed, refusal, updated, heartbeat, now)
        case BetweenAttempts(text=text):
            between = unknown_because("BetweenAttempts", text)
            return _table(between, false_because("BetweenAttempts", text), between, updated=updated)
        case Suspending(reason=reason, text=text):
            stopping = false_because("Suspending", text)
            return _table(
                stopping,
                stopping,
                unknown_because("Suspending"),
                unknown_because(reason, text),
                updated,
            )
        case Suspended():
            has_finalizer = false_because("Suspended", "spec.suspend is true")
            return _table(
                has_finalizer,
                has_finalizer,
                unknown_because("Suspended"),
                true_because("Suspended", "it holds nothing"),
                updated,
            )
        case Succeeding(attempt=attempt):
            over = false_because("Finished")
            return _table(over, over, true_because("AttemptSucceeded", f"attempt {attempt}"), updated=updated)
        case Failing(attempt=attempt, reason=reason, text=text, final=final, why=why):
            over = false_because(reason.value, text)
            said = f"attempt {attempt}: {text}"
            if not final:
                return _table(over, over, unknown_because("BetweenAttempts", said), updated=updated)
            failed = true_because(reason.value, f"{said}; {why}")
            return _table(over, over, false_because(reason.value, said), updated=updated, failed=failed)


NOT_SUSPENDED = false_because("NotRequested")
UP_TO_DATE = true_because("AsRequested")
NOT_FAILED = false_because("NoFailure")
NOT_RUNNING = unknown_because("NotRunning")


def _table(
    admitted: ConditionValue,
    ready: ConditionValue,
    succeeded: ConditionValue,
    suspended: ConditionValue = NOT_SUSPENDED,
    updated: ConditionValue = UP_TO_DATE,
    failed: ConditionValue = NOT_FAILED,
    weights: ConditionValue = NOT_RUNNING,
    stalled: ConditionValue = NOT_RUNNING,
) -> Table:
    return {
        "Admitted": admitted, "Ready": ready, "WeightsInSync": weights, "Updated": updated, "ProgressStalled": stalled,
        "Suspended": suspended, "Succeeded": succeeded, "Failed": failed,
    }  # fmt: skip


def review_spec(facts: JobFacts | None) -> Table:
    """Conditions about what a spec asks for, before any pod runs; without facts, of a spec that cannot be read."""
    if facts is None:
        unread = unknown_because("InvalidSpec")
        return {"ResultsKept": unread, "AcceleratorChosen": unread}
    results = false_because("ResultsOnEmptyDir", f"spec.checkpoint.claimName {RESULTS_LOST}")
    vendor = false_because("NoVendor", f"spec.trainer.accelerator.vendor {NO_VENDOR}")
    return {
        "ResultsKept": true_because("VolumeMounted") if facts.keeps_results else results,
        "AcceleratorChosen": true_because(facts.vendor) if facts.vendor else vendor,
    }


def _creating(attempt: int, refusal: Refusal | None, updated: ConditionValue) -> Table:
    if refusal:
        refused = false_because(refusal.kind, refusal.text)
        return _table(refused, refused, unknown_because(refusal.kind), updated=updated)
    made = unknown_because("AttemptCreated", f"attempt {attempt}")
    return _table(made, false_because("Starting"), made, updated=updated)


def _active(
    attempt: int,
    going: InProgress,
    observed: Observation,
    refusal: Refusal | None,
    updated: ConditionValue,
    heartbeat: Heartbeat,
    now: datetime,
) -> Table:
    if going.stage is Stage.QUEUED:
        queued = false_because("Queued", "a queue holds the RayJob back (its spec.suspend is true)")
        return _table(queued, false_because("Queued"), unknown_because("Queued"), updated=updated)
    admitted = true_because("ChildUnsuspended")
    problem = false_because(going.problem_reason, going.problem) if going.problem_reason else None
    if problem is None and refusal:
        problem = false_because(refusal.kind, refusal.text)
    if going.stage is Stage.STARTING:
        starting = false_because("Starting", f"attempt {attempt}")
        return _table(admitted, problem or starting, unknown_because("Starting"), updated=updated)
    report = observed.report_of(attempt)
    return _table(
        admitted,
        problem or _serving(observed, attempt),
        unknown_because("Running", (report.phase if report else None) or ""),
        updated=updated,
        weights=_weights(report, heartbeat, now),
        stalled=_stalled(heartbeat, now),
    )


def _serving(observed: Observation, attempt: int) -> ConditionValue:
    cluster = observed.cluster(attempt)
    if cluster is None:
        return false_because("PodsNotReady", "KubeRay has not made the RayCluster yet")
    ready, desired = cluster.ready_workers, cluster.desired_workers
    if cluster.head_ready and ready >= desired:
        return true_because("TrainerAndRolloutsServing")
    head = "ready" if cluster.head_ready else "not ready"
    return false_because("PodsNotReady", f"head {head}, workers {ready}/{desired}")


def _weights(report: TrainerReport | None, heartbeat: Heartbeat, now: datetime) -> ConditionValue:
    if report is None or report.version is None:
        return unknown_because("NoReports", "the trainer has not reported a weight version")
    if report.min_version is None:
        return ConditionValue(
            "Unknown", "ReplicasUnknown", f"trainer at {report.version}; no engine reported its version"
        )
    lag = report.version - report.min_version
    if lag > heartbeat.max_lag:
        return ConditionValue(
            "False", "ReplicaBehind", f"an engine is at {report.min_version}, the trainer at {report.version}"
        )
    if report.synced_at and now - report.synced_at >= heartbeat.max_age:
        return false_because("WeightsOld", f"weights were last sent at {format_timestamp(report.synced_at)}")
    return true_because("InSync")


def _stalled(heartbeat: Heartbeat, now: datetime) -> ConditionValue:
    if heartbeat.at is None:
        return unknown_because("NoReports", "the trainer has not reported")
    if now >= heartbeat.at + heartbeat.silence:
        return true_because("HeartbeatStopped", f"the last report came at {format_timestamp(heartbeat.at)}")
    return false_because("StepAdvancing")


def update_conditions(previous: Status, said: Table, generation: int, now: datetime) -> tuple[Condition, ...]:
    """The conditions with their times: a transition's time moves only when the status flips."""
    made = []
    for kind in CONDITION_TYPES:
        new, old = said[kind], previous.condition(kind)
        flipped = old is None or old.status != new.status or parse_timestamp(old.last_transition_time) is None
        made.append(
            Condition(
                type=kind,
                status=new.status,
                reason=new.reason,
                message=new.message[:MESSAGE_LIMIT],
                observed_generation=generation,
                last_transition_time=format_timestamp(now) if flipped or old is None else old.last_transition_time,
            )
        )
    return tuple(made)
