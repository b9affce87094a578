"""PURE: where a job stands -> its conditions, all of them every time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from omni_operator.api.status import CONDITION_TYPES, Condition, Status

from .classify import Going, Stage
from .seen import Observed, Refusal, Report
from .situation import (
    Active,
    Creating,
    Deleting,
    Done,
    Failing,
    Finished,
    Invalid,
    Situation,
    Suspended,
    Suspending,
    Waiting,
)
from .times import moment, stamp

Truth = Literal["True", "False", "Unknown"]
MESSAGE_LIMIT = 1024


@dataclass(frozen=True, slots=True)
class Said:
    """A condition without its times."""

    status: Truth
    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class Heard:
    """When the trainer of the running attempt was last heard, and how long it may be silent.

    Attributes:
        at: None: never in this attempt.
        max_lag: versions that an engine may be behind.
        max_age: how long ago weights may have been sent.
    """

    at: datetime | None
    silence: timedelta
    max_lag: int = 1
    max_age: timedelta = timedelta.max


Table = Mapping[str, Said]


def conditions(
    situation: Situation, seen: Observed, refusal: Refusal | None, updated: Said, heard: Heard, now: datetime
) -> Table | None:
    """What every condition says; None where all stay as they are."""
    match situation:
        case Finished() | Deleting():
            return None
        case Invalid(text=text):
            refused = Said("False", "InvalidSpec", text)
            return _table(refused, refused, Said("Unknown", "InvalidSpec"), updated=refused)
        case Creating(attempt=attempt):
            return _creating(attempt, refusal, updated)
        case Active(attempt=attempt, going=going):
            return _active(attempt, going, seen, refusal, updated, heard, now)
        case Waiting(text=text):
            between = Said("Unknown", "BetweenAttempts", text)
            return _table(between, Said("False", "BetweenAttempts", text), between, updated=updated)
        case Suspending(reason=reason, text=text):
            stopping = Said("False", "Suspending", text)
            return _table(stopping, stopping, Said("Unknown", "Suspending"), Said("Unknown", reason, text), updated)
        case Suspended():
            held = Said("False", "Suspended", "spec.suspend is true")
            return _table(
                held, held, Said("Unknown", "Suspended"), Said("True", "Suspended", "it holds nothing"), updated
            )
        case Done(attempt=attempt):
            over = Said("False", "Finished")
            return _table(over, over, Said("True", "AttemptSucceeded", f"attempt {attempt}"), updated=updated)
        case Failing(attempt=attempt, reason=reason, text=text, final=final, why=why):
            over = Said("False", reason.value, text)
            said = f"attempt {attempt}: {text}"
            if not final:
                return _table(over, over, Said("Unknown", "BetweenAttempts", said), updated=updated)
            failed = Said("True", reason.value, f"{said}; {why}")
            return _table(over, over, Said("False", reason.value, said), updated=updated, failed=failed)


def _table(
    admitted: Said,
    ready: Said,
    succeeded: Said,
    suspended: Said = Said("False", "NotRequested"),
    updated: Said = Said("True", "AsRequested"),
    failed: Said = Said("False", "NoFailure"),
    weights: Said = Said("Unknown", "NotRunning"),
    stalled: Said = Said("Unknown", "NotRunning"),
) -> Table:
    return dict(
        zip(CONDITION_TYPES, (admitted, ready, weights, updated, stalled, suspended, succeeded, failed), strict=True)
    )


def _creating(attempt: int, refusal: Refusal | None, updated: Said) -> Table:
    if refusal:
        refused = Said("False", refusal.kind, refusal.text)
        return _table(refused, refused, Said("Unknown", refusal.kind), updated=updated)
    made = Said("Unknown", "AttemptCreated", f"attempt {attempt}")
    return _table(made, Said("False", "Starting"), made, updated=updated)


def _active(
    attempt: int, going: Going, seen: Observed, refusal: Refusal | None, updated: Said, heard: Heard, now: datetime
) -> Table:
    if going.stage is Stage.QUEUED:
        queued = Said("False", "Queued", "a queue holds the RayJob back (its spec.suspend is true)")
        return _table(queued, Said("False", "Queued"), Said("Unknown", "Queued"), updated=updated)
    admitted = Said("True", "ChildUnsuspended")
    trouble = Said("False", going.trouble_kind, going.trouble) if going.trouble_kind else None
    if trouble is None and refusal:
        trouble = Said("False", refusal.kind, refusal.text)
    if going.stage is Stage.STARTING:
        starting = Said("False", "Starting", f"attempt {attempt}")
        return _table(admitted, trouble or starting, Said("Unknown", "Starting"), updated=updated)
    report = seen.report_of(attempt)
    return _table(
        admitted,
        trouble or _serving(seen, attempt),
        Said("Unknown", "Running", (report.phase if report else None) or ""),
        updated=updated,
        weights=_weights(report, heard, now),
        stalled=_stalled(heard, now),
    )


def _serving(seen: Observed, attempt: int) -> Said:
    cluster = seen.cluster(attempt)
    if cluster is None:
        return Said("False", "PodsNotReady", "KubeRay has not made the RayCluster yet")
    ready, desired = cluster.ready_workers, cluster.desired_workers
    if cluster.head_ready and ready >= desired:
        return Said("True", "TrainerAndRolloutsServing")
    head = "ready" if cluster.head_ready else "not ready"
    return Said("False", "PodsNotReady", f"head {head}, workers {ready}/{desired}")


def _weights(report: Report | None, heard: Heard, now: datetime) -> Said:
    if report is None or report.version is None:
        return Said("Unknown", "NoReports", "the trainer has not reported a weight version")
    if report.min_version is None:
        return Said("Unknown", "ReplicasUnknown", f"trainer at {report.version}; no engine reported its version")
    lag = report.version - report.min_version
    if lag > heard.max_lag:
        return Said("False", "ReplicaBehind", f"an engine is at {report.min_version}, the trainer at {report.version}")
    if report.synced_at and now - report.synced_at >= heard.max_age:
        return Said("False", "WeightsOld", f"weights were last sent at {stamp(report.synced_at)}")
    return Said("True", "InSync")


def _stalled(heard: Heard, now: datetime) -> Said:
    if heard.at is None:
        return Said("Unknown", "NoReports", "the trainer has not reported")
    if now >= heard.at + heard.silence:
        return Said("True", "HeartbeatStopped", f"the last report came at {stamp(heard.at)}")
    return Said("False", "StepAdvancing")


def merge(previous: Status, said: Table, generation: int, now: datetime) -> tuple[Condition, ...]:
    """The conditions with their times: a transition's time moves only when the status flips."""
    made = []
    for kind in CONDITION_TYPES:
        new, old = said[kind], previous.condition(kind)
        flipped = old is None or old.status != new.status or moment(old.last_transition_time) is None
        made.append(
            Condition(
                type=kind,
                status=new.status,
                reason=new.reason,
                message=new.message[:MESSAGE_LIMIT],
                observed_generation=generation,
                last_transition_time=stamp(now) if flipped or old is None else old.last_transition_time,
            )
        )
    return tuple(made)
