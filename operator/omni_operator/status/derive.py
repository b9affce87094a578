"""PURE: the whole status of a job, from where it stands and what was seen and heard.

The status is a function of the last written one and of what is there now: deriving twice from the same gives the same,
so a resync at rest writes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from omni_operator.api.status import FAILURES_KEPT, Children, Failure, RolloutStatus, Status, Weights

from . import figures
from .classify import Going, Stage
from .conditions import Heard, Said, conditions, merge
from .seen import Observed, Refusal, Report
from .situation import Active, Creating, Deleting, Done, Failing, Finished, Invalid, Situation, Suspended
from .terms import Patience, Terms
from .times import moment, stamp

STEPS_OF_SILENCE = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a status rests on besides the job.

    Attributes:
        digest: of the RayJob that the spec renders to now; None where the spec has not changed.
        refusal: the API server's answer, where it refused a step of this pass.
        listening: since when reports can arrive at this process.
    """

    patience: Patience
    now: datetime
    listening: datetime
    digest: str | None = None
    refusal: Refusal | None = None


def derive(terms: Terms, seen: Observed, previous: Status, situation: Situation, context: Context) -> Status:
    """The status of a job; `previous` is the one that was written last."""
    if isinstance(situation, Deleting):
        return previous
    if isinstance(situation, Finished):
        return _finished(terms, seen, previous)
    now, attempt = context.now, max(previous.attempts, seen.newest)
    if isinstance(situation, Creating) and seen.rayjob(situation.attempt):
        situation = Active(situation.attempt, Going(Stage.STARTING))
    base = _new_attempt(previous) if attempt > previous.attempts and previous.attempts else previous
    report = seen.report_of(attempt)
    heard = heard_of(terms, base, report, context)
    said = conditions(
        situation, seen, context.refusal, _updated(base, seen, attempt, terms.generation, context), heard, now
    )
    assert said is not None  # those situations have returned above
    weights = base.condition("WeightsInSync")
    if report is None and heard.at and weights and said["ProgressStalled"].reason != "NotRunning":
        # A process before this one heard the trainer: what it found holds until the next report.
        said = {**said, "WeightsInSync": Said(weights.status, weights.reason, weights.message)}
    running = _running_since(base, seen, attempt, situation)
    until = _counted_until(situation, report, base, now)
    made = base.model_copy(
        update={
            "observed_generation": terms.generation,
            "conditions": merge(previous, said, terms.generation, now),
            "attempts": attempt,
            "progress": figures.progress(base.progress, report, terms),
            "weights": figures.weights(base.weights, report),
            "checkpoint": figures.checkpoint(base.checkpoint, report),
            "usage": figures.usage(base, report, running, until, terms),
            "children": _children(seen, attempt),
            "rollout": _rollout(seen, attempt, terms),
            "running_time": stamp(running) if running and isinstance(situation, Active) else None,
            **_times(base, seen, attempt, situation, now),
        }
    )
    return _with_failure(made, situation, now) if isinstance(situation, Failing) else made


def heard_of(terms: Terms, status: Status, report: Report | None, context: Context) -> Heard:
    """When the running attempt's trainer was last heard: by this process, or else by the one before it."""
    step = (report.step_seconds or 0.0) if report else 0.0
    silence = max(context.patience.stall, timedelta(seconds=STEPS_OF_SILENCE * step))
    at = report.at if report else moment(status.progress.heartbeat_time)
    # While no process of ours listened, silence says nothing; what was found to be silent before stays so.
    if at and not status.is_true("ProgressStalled"):
        at = max(at, context.listening)
    return Heard(at, silence, terms.max_lag, terms.max_age)


def _finished(terms: Terms, seen: Observed, previous: Status) -> Status:
    """What still can come in after the end: the last report, pods that go, and a generation that was looked at."""
    report = seen.report_of(previous.attempts)
    return previous.model_copy(
        update={
            "observed_generation": terms.generation,
            "progress": figures.progress(previous.progress, report, terms),
            "weights": figures.weights(previous.weights, report),
            "checkpoint": figures.checkpoint(previous.checkpoint, report),
            "rollout": _rollout(seen, previous.attempts, terms),
        }
    )


def _new_attempt(previous: Status) -> Status:
    """The status with what is of one attempt alone set back."""
    progress = previous.progress.model_copy(
        update={"samples": None, "heartbeat_time": None, "estimated_remaining_seconds": None}
    )
    return previous.model_copy(update={"progress": progress, "weights": Weights(), "running_time": None})


def _running_since(status: Status, seen: Observed, attempt: int, situation: Situation) -> datetime | None:
    """Since when the attempt's trainer runs; remembered, because its RayJob may be gone by now."""
    rayjob = seen.rayjob(attempt)
    if rayjob and rayjob.started:
        return rayjob.started
    if isinstance(situation, Active) and situation.going.stage is not Stage.RUNNING:
        return None
    return moment(status.running_time)


def _counted_until(situation: Situation, report: Report | None, base: Status, now: datetime) -> datetime | None:
    """Until when usage is counted: reports bring it forward while the attempt runs, its end closes it."""
    match situation:
        case Done(at=at):
            return at
        case Failing():
            return now if base.running_time else None
        case Suspended():
            return now if base.running_time else None
        case Active() if report:
            return report.at
        case _:
            return None


def _times(status: Status, seen: Observed, attempt: int, situation: Situation, now: datetime) -> dict[str, str | None]:
    """Times of the job and of its attempt. A suspension sets the clock of activeDeadlineSeconds back, as Jobs do."""
    rayjob = seen.rayjob(attempt)
    begun = stamp(rayjob.created) if rayjob else status.attempt_start_time
    ended = isinstance(situation, Done) or (isinstance(situation, Failing) and situation.final)
    at = situation.at if isinstance(situation, Done) else now
    start = None if isinstance(situation, Suspended) else status.start_time or (begun if attempt else None)
    return {
        "start_time": start,
        "attempt_start_time": begun if attempt else None,
        "completion_time": stamp(at) if ended else status.completion_time,
    }


def _with_failure(status: Status, failing: Failing, now: datetime) -> Status:
    """Add the failure, unless the attempt has one already: it ended once."""
    if any(failure.attempt == failing.attempt for failure in status.failures):
        return status
    failure = Failure(
        attempt=failing.attempt,
        reason=failing.reason.value,
        message=failing.text,
        at=stamp(now),
        checkpoint=status.checkpoint.last,
        counted=failing.counted,
    )
    return status.model_copy(
        update={
            "failures": (*status.failures, failure)[-FAILURES_KEPT:],
            "failures_counted": status.failures_counted + int(failing.counted),
        }
    )


def _children(seen: Observed, attempt: int) -> Children:
    rayjob, cluster = seen.rayjob(attempt), seen.cluster(attempt)
    if rayjob is None:
        return Children()
    name = cluster.name if cluster else rayjob.cluster or None
    return Children(ray_job=rayjob.name, ray_cluster=name, dashboard_url=rayjob.dashboard or None)


def _rollout(seen: Observed, attempt: int, terms: Terms) -> RolloutStatus:
    """Colocated engines run in the workers, so the workers' pods are what draws."""
    cluster = seen.cluster(attempt)
    ready = min(cluster.ready_workers, terms.workers) if cluster else 0
    return RolloutStatus(
        desired=terms.workers,
        ready=ready,
        updated=terms.workers if cluster else 0,
        summary=f"{ready}/{terms.workers}",
        selector=f"ray.io/cluster={cluster.name},ray.io/node-type=worker" if cluster else None,
    )


def _updated(status: Status, seen: Observed, attempt: int, generation: int, context: Context) -> Said:
    """Whether the attempt is what the spec says now; with the spec unchanged, what was found of it before."""
    rayjob, before = seen.rayjob(attempt), status.condition("Updated")
    if before and attempt == status.attempts and generation == status.observed_generation:
        return Said(before.status, before.reason, before.message)
    if rayjob and rayjob.digest and context.digest and rayjob.digest != context.digest:
        return Said("False", "NextAttempt", "the spec changed; the running attempt goes on as it was made")
    return Said("True", "AsRequested")


def invalid(terms: Terms, seen: Observed, previous: Status, text: str, context: Context) -> Status:
    """The status of a job whose spec cannot be used.

    While an attempt runs only `Updated` says so, because what runs is left alone.
    """
    if previous.finished:
        return previous.model_copy(update={"observed_generation": terms.generation})
    situation = Invalid(text)
    said = conditions(situation, seen, None, Said("False", "InvalidSpec", text), Heard(None, timedelta()), context.now)
    assert said is not None
    if seen.rayjobs and len(previous.conditions) == len(said):
        kept = {found.type: Said(found.status, found.reason, found.message) for found in previous.conditions}
        said = {kind: said[kind] if kind == "Updated" else kept.get(kind, said[kind]) for kind in said}
    made = merge(previous, said, terms.generation, context.now)
    return previous.model_copy(update={"observed_generation": terms.generation, "conditions": made})
