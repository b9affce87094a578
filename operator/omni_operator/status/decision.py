"""PURE: what to do next about a job.

Rules that hold in every state:
- at most one attempt exists: the next one is made when nothing of the last one is left (both would write the same
  checkpoints), or when leftovers outlast `Timeouts.leftovers`;
- a failure is written to the status before anything is done about it, so a crash in between repeats nothing;
- attempts are numbered without gaps from what exists and what the status remembers, so no name is used twice;
- nothing is made while the job is being deleted, is finished, or is suspended.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from omni_operator.api.status import Status

from .job_facts import JobFacts, action_for
from .observation import Observation, ObservedRayJob
from .reasons import Action, FailureReason
from .situation import (
    Active,
    AddFinalizer,
    ApplyShared,
    BetweenAttempts,
    CreateAttempt,
    Creating,
    Decision,
    DeleteRayJob,
    DeleteSelf,
    Deleting,
    Failing,
    Finished,
    RemoveFinalizer,
    RequestCheckpoint,
    Step,
    Succeeding,
    Suspended,
    Suspending,
)
from .timeouts import Timeouts
from .timestamps import parse_timestamp
from .verdict import AttemptFailed, InProgress, Stage, Succeeded, Verdict, classify_attempt

SUSPENDING = frozenset({"CheckpointRequested", "Stopping"})


def decide(facts: JobFacts, observed: Observation, status: Status, timeouts: Timeouts, now: datetime) -> Decision:
    """The next steps of a job whose spec can be used.

    Args:
        status: as it was last written.
    """
    if facts.deleting is not None:
        return _deleting(facts, facts.deleting, observed, timeouts, now)
    if status.finished:
        return _finished(facts, observed, status, now)
    hold: tuple[Step, ...] = () if facts.has_finalizer else (AddFinalizer(),)
    current = max(status.attempts, observed.newest)
    verdict = _verdict(facts, observed, status, current, timeouts, now)
    if isinstance(verdict, Succeeded):
        return Decision(Succeeding(current, verdict.at), hold, now)
    if isinstance(verdict, AttemptFailed) and verdict.reason is FailureReason.DEADLINE_EXCEEDED:
        return Decision(_failing(facts, status, current, verdict), hold, now)
    if facts.suspend:
        return _suspend(facts, observed, status, current, verdict, now)
    if verdict is None:
        return _next(facts, observed, status, current, timeouts, now)
    if isinstance(verdict, AttemptFailed):
        return Decision(_failing(facts, status, current, verdict), hold, now)
    wake = min((at for at in (verdict.wake, _active_deadline(facts, status)) if at), default=None)
    return Decision(Active(current, verdict), (*hold, ApplyShared()), wake)


def _verdict(
    facts: JobFacts, observed: Observation, status: Status, current: int, timeouts: Timeouts, now: datetime
) -> Verdict | None:
    """How the current attempt stands; None where there is none that could run: the first, or the next, is due."""
    deadline = _active_deadline(facts, status)
    over = deadline is not None and now >= deadline
    late = AttemptFailed(FailureReason.DEADLINE_EXCEEDED, f"ran longer than activeDeadlineSeconds ({_seconds(facts)})")
    if current == 0 or any(failure.attempt == current for failure in status.failures):
        return late if over and current else None
    rayjob = observed.rayjob(current)
    if _was_suspended(status) and (rayjob is None or rayjob.deleting):
        return None
    admitted = status.condition("Admitted")
    queued = admitted is not None and admitted.reason == "Queued"  # as last written: it may be admitted just now
    since = now if queued else parse_timestamp(admitted.last_transition_time) if admitted else None
    verdict = classify_attempt(facts, observed, current, since, timeouts, now)
    return late if over and isinstance(verdict, InProgress) else verdict


def _next(
    facts: JobFacts, observed: Observation, status: Status, current: int, timeouts: Timeouts, now: datetime
) -> Decision:
    """Make the next attempt, once nothing of the last one is left and the pause between attempts is over."""
    hold: tuple[Step, ...] = () if facts.has_finalizer else (AddFinalizer(),)
    failure = next((found for found in status.failures if found.attempt == current), None)
    failed_at = parse_timestamp(failure.at) if failure else None
    deletes = tuple(_delete(rayjob) for rayjob in observed.rayjobs if not rayjob.deleting)
    patient_until = (failed_at or _resumed(status) or facts.created) + timeouts.leftovers
    if not observed.empty and (deletes or now < patient_until):
        text = f"attempt {current + 1} starts when nothing of the one before it is left"
        return Decision(BetweenAttempts(text), (*hold, *deletes), patient_until)
    due = failed_at + _pause(status.failures_counted, timeouts) if failed_at and current else None
    if due and now < due:
        return Decision(BetweenAttempts(f"attempt {current + 1} starts after a pause"), hold, due)
    return Decision(Creating(current + 1), (*hold, ApplyShared(), CreateAttempt(current + 1)))


def _pause(counted: int, timeouts: Timeouts) -> timedelta:
    """Doubled for each counted failure, up to a limit."""
    return min(timeouts.retry * 2 ** min(max(counted - 1, 0), 16), timeouts.retry_most)


def _failing(facts: JobFacts, status: Status, attempt: int, broke: AttemptFailed) -> Failing:
    """What follows the failure of an attempt."""
    action = action_for(facts, broke.reason)
    over_limit = action is Action.RETRY and status.failures_counted >= facts.backoff_limit
    # The job's own deadline bounds all attempts together, so no other one could follow.
    deadline = broke.reason is FailureReason.DEADLINE_EXCEEDED
    why = ""
    if deadline:
        why = "the deadline is for all attempts together"
    elif action is Action.FAIL:
        why = f"a rule says {Action.FAIL.value} for {broke.reason.value}"
    elif over_limit:
        why = f"backoffLimit is {facts.backoff_limit}"
    counted = action is not Action.RETRY_IGNORE_LIMIT
    return Failing(attempt, broke.reason, broke.text, action, counted, bool(why), why)


def _suspend(
    facts: JobFacts, observed: Observation, status: Status, current: int, verdict: Verdict | None, now: datetime
) -> Decision:
    """Ask for a checkpoint, wait for it as long as the policy says, then delete the attempt."""
    if observed.empty:
        return Decision(Suspended())
    condition = status.condition("Suspended")
    begun = condition is not None and condition.reason in SUSPENDING
    since = (parse_timestamp(condition.last_transition_time) if condition and begun else None) or now
    stopping = condition is not None and condition.reason == "Stopping"
    report = observed.report_of(current)
    running = isinstance(verdict, InProgress) and verdict.stage is Stage.RUNNING
    if facts.grace and running and report and not stopping and now < since + facts.grace:
        answered = report.checkpoint_at is not None and report.checkpoint_at >= since
        if not answered:
            text = "the trainer was asked for a checkpoint"
            return Decision(
                Suspending("CheckpointRequested", text, since), (RequestCheckpoint(since),), since + facts.grace
            )
    deletes = tuple(_delete(rayjob) for rayjob in observed.rayjobs if not rayjob.deleting)
    return Decision(Suspending("Stopping", "its pods are being stopped", since), deletes)


def _resumed(status: Status) -> datetime | None:
    """When the wait after a suspension began, as far as the status tells."""
    condition = status.condition("Admitted")
    return parse_timestamp(condition.last_transition_time) if condition and _was_suspended(status) else None


def _was_suspended(status: Status) -> bool:
    condition = status.condition("Suspended")
    return condition is not None and (condition.status == "True" or condition.reason in SUSPENDING)


def _finished(facts: JobFacts, observed: Observation, status: Status, now: datetime) -> Decision:
    """Stop what KubeRay does not stop by itself, and delete the job when its time to live is over."""
    ended = parse_timestamp(status.completion_time) or now
    expires = ended + facts.ttl if facts.ttl is not None else None
    if expires is not None and now >= expires:
        return Decision(Finished(), (DeleteSelf(),))
    live = () if facts.retain else tuple(job for job in observed.rayjobs if not (_ended(job) or job.deleting))
    return Decision(Finished(), tuple(_delete(rayjob) for rayjob in live), expires)


def _deleting(facts: JobFacts, since: datetime, observed: Observation, timeouts: Timeouts, now: datetime) -> Decision:
    """Delete the attempts, and let the job go when they are gone or after a while, whatever is left."""
    if not facts.has_finalizer:
        return Decision(Deleting())
    deletes = tuple(_delete(rayjob) for rayjob in observed.rayjobs if not rayjob.deleting)
    until = since + timeouts.deletion
    if not observed.rayjobs or now >= until:
        return Decision(Deleting(), (*deletes, RemoveFinalizer()))
    return Decision(Deleting(), deletes, until)


def _active_deadline(facts: JobFacts, status: Status) -> datetime | None:
    started = parse_timestamp(status.start_time)
    return started + facts.active_deadline if started and facts.active_deadline is not None else None


def _seconds(facts: JobFacts) -> int:
    return int(facts.active_deadline.total_seconds()) if facts.active_deadline else 0


def _delete(rayjob: ObservedRayJob) -> DeleteRayJob:
    return DeleteRayJob(rayjob.name, rayjob.uid)


def _ended(rayjob: ObservedRayJob) -> bool:
    return rayjob.deployment in ("Complete", "Failed", "ValidationFailed")
