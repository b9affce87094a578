"""PURE: what to do next about a job.

Rules that hold in every state:
- at most one attempt exists: the next one is made when nothing of the last one is left (both would write the same
  checkpoints), or when leftovers outlast `Patience.leftovers`;
- a failure is written to the status before anything is done about it, so a crash in between repeats nothing;
- attempts are numbered without gaps from what exists and what the status remembers, so no name is used twice;
- nothing is made while the job is being deleted, is finished, or is suspended.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from omni_operator.api.status import Status

from .classify import Broke, Going, Stage, Succeeded, Verdict, classify
from .reasons import Action, FailureReason
from .seen import Observed, RayJobSeen
from .situation import (
    Active,
    AskCheckpoint,
    CreateAttempt,
    Creating,
    Decision,
    DeleteRayJob,
    DeleteSelf,
    Deleting,
    Done,
    EnsureShared,
    Failing,
    Finished,
    Hold,
    Release,
    Step,
    Suspended,
    Suspending,
    Waiting,
)
from .terms import Patience, Terms, action_for
from .times import moment

SUSPENDING = frozenset({"CheckpointRequested", "Stopping"})


def decide(terms: Terms, seen: Observed, status: Status, patience: Patience, now: datetime) -> Decision:
    """The next steps of a job whose spec can be used.

    Args:
        status: as it was last written.
    """
    if terms.deleting is not None:
        return _deleting(terms, terms.deleting, seen, patience, now)
    if status.finished:
        return _finished(terms, seen, status, now)
    hold: tuple[Step, ...] = () if terms.held else (Hold(),)
    current = max(status.attempts, seen.newest)
    verdict = _verdict(terms, seen, status, current, patience, now)
    if isinstance(verdict, Succeeded):
        return Decision(Done(current, verdict.at), hold, now)
    if isinstance(verdict, Broke) and verdict.reason is FailureReason.DEADLINE_EXCEEDED:
        return Decision(_failing(terms, status, current, verdict), hold, now)
    if terms.suspend:
        return _suspend(terms, seen, status, current, verdict, now)
    if verdict is None:
        return _next(terms, seen, status, current, patience, now)
    if isinstance(verdict, Broke):
        return Decision(_failing(terms, status, current, verdict), hold, now)
    wake = min((at for at in (verdict.wake, _active_deadline(terms, status)) if at), default=None)
    return Decision(Active(current, verdict), (*hold, EnsureShared()), wake)


def _verdict(
    terms: Terms, seen: Observed, status: Status, current: int, patience: Patience, now: datetime
) -> Verdict | None:
    """How the current attempt stands; None where there is none that could run: the first, or the next, is due."""
    deadline = _active_deadline(terms, status)
    over = deadline is not None and now >= deadline
    late = Broke(FailureReason.DEADLINE_EXCEEDED, f"ran longer than activeDeadlineSeconds ({_seconds(terms)})")
    if current == 0 or any(failure.attempt == current for failure in status.failures):
        return late if over and current else None
    rayjob = seen.rayjob(current)
    if _was_suspended(status) and (rayjob is None or rayjob.deleting):
        return None
    admitted = status.condition("Admitted")
    queued = admitted is not None and admitted.reason == "Queued"  # as last written: it may be admitted just now
    since = now if queued else moment(admitted.last_transition_time) if admitted else None
    verdict = classify(terms, seen, current, since, patience, now)
    return late if over and isinstance(verdict, Going) else verdict


def _next(terms: Terms, seen: Observed, status: Status, current: int, patience: Patience, now: datetime) -> Decision:
    """Make the next attempt, once nothing of the last one is left and the pause between attempts is over."""
    hold: tuple[Step, ...] = () if terms.held else (Hold(),)
    failure = next((found for found in status.failures if found.attempt == current), None)
    failed_at = moment(failure.at) if failure else None
    deletes = tuple(_delete(rayjob) for rayjob in seen.rayjobs if not rayjob.deleting)
    patient_until = (failed_at or _resumed(status) or terms.created) + patience.leftovers
    if not seen.empty and (deletes or now < patient_until):
        text = f"attempt {current + 1} starts when nothing of the one before it is left"
        return Decision(Waiting(text), (*hold, *deletes), patient_until)
    due = failed_at + _pause(status.failures_counted, patience) if failed_at and current else None
    if due and now < due:
        return Decision(Waiting(f"attempt {current + 1} starts after a pause"), hold, due)
    return Decision(Creating(current + 1), (*hold, EnsureShared(), CreateAttempt(current + 1)))


def _pause(counted: int, patience: Patience) -> timedelta:
    """Doubled for each counted failure, up to a limit."""
    return min(patience.retry * 2 ** min(max(counted - 1, 0), 16), patience.retry_most)


def _failing(terms: Terms, status: Status, attempt: int, broke: Broke) -> Failing:
    """What follows the failure of an attempt."""
    action = action_for(terms, broke.reason)
    over_limit = action is Action.RETRY and status.failures_counted >= terms.backoff_limit
    # The job's own deadline bounds all attempts together, so no other one could follow.
    deadline = broke.reason is FailureReason.DEADLINE_EXCEEDED
    why = ""
    if deadline:
        why = "the deadline is for all attempts together"
    elif action is Action.FAIL:
        why = f"a rule says {Action.FAIL.value} for {broke.reason.value}"
    elif over_limit:
        why = f"backoffLimit is {terms.backoff_limit}"
    counted = action is not Action.RETRY_IGNORE_LIMIT
    return Failing(attempt, broke.reason, broke.text, action, counted, bool(why), why)


def _suspend(
    terms: Terms, seen: Observed, status: Status, current: int, verdict: Verdict | None, now: datetime
) -> Decision:
    """Ask for a checkpoint, wait for it as long as the policy says, then delete the attempt."""
    if seen.empty:
        return Decision(Suspended())
    condition = status.condition("Suspended")
    begun = condition is not None and condition.reason in SUSPENDING
    since = (moment(condition.last_transition_time) if condition and begun else None) or now
    stopping = condition is not None and condition.reason == "Stopping"
    report = seen.report_of(current)
    running = isinstance(verdict, Going) and verdict.stage is Stage.RUNNING
    if terms.grace and running and report and not stopping and now < since + terms.grace:
        answered = report.checkpoint_at is not None and report.checkpoint_at >= since
        if not answered:
            text = "the trainer was asked for a checkpoint"
            return Decision(
                Suspending("CheckpointRequested", text, since), (AskCheckpoint(since),), since + terms.grace
            )
    deletes = tuple(_delete(rayjob) for rayjob in seen.rayjobs if not rayjob.deleting)
    return Decision(Suspending("Stopping", "its pods are being stopped", since), deletes)


def _resumed(status: Status) -> datetime | None:
    """When the wait after a suspension began, as far as the status tells."""
    condition = status.condition("Admitted")
    return moment(condition.last_transition_time) if condition and _was_suspended(status) else None


def _was_suspended(status: Status) -> bool:
    condition = status.condition("Suspended")
    return condition is not None and (condition.status == "True" or condition.reason in SUSPENDING)


def _finished(terms: Terms, seen: Observed, status: Status, now: datetime) -> Decision:
    """Stop what KubeRay does not stop by itself, and delete the job when its time to live is over."""
    ended = moment(status.completion_time) or now
    expires = ended + terms.ttl if terms.ttl is not None else None
    if expires is not None and now >= expires:
        return Decision(Finished(), (DeleteSelf(),))
    live = () if terms.retain else tuple(job for job in seen.rayjobs if not (_ended(job) or job.deleting))
    return Decision(Finished(), tuple(_delete(rayjob) for rayjob in live), expires)


def _deleting(terms: Terms, since: datetime, seen: Observed, patience: Patience, now: datetime) -> Decision:
    """Delete the attempts, and let the job go when they are gone or after a while, whatever is left."""
    if not terms.held:
        return Decision(Deleting())
    deletes = tuple(_delete(rayjob) for rayjob in seen.rayjobs if not rayjob.deleting)
    until = since + patience.deletion
    if not seen.rayjobs or now >= until:
        return Decision(Deleting(), (*deletes, Release()))
    return Decision(Deleting(), deletes, until)


def _active_deadline(terms: Terms, status: Status) -> datetime | None:
    started = moment(status.start_time)
    return started + terms.active_deadline if started and terms.active_deadline is not None else None


def _seconds(terms: Terms) -> int:
    return int(terms.active_deadline.total_seconds()) if terms.active_deadline else 0


def _delete(rayjob: RayJobSeen) -> DeleteRayJob:
    return DeleteRayJob(rayjob.name, rayjob.uid)


def _ended(rayjob: RayJobSeen) -> bool:
    return rayjob.deployment in ("Complete", "Failed", "ValidationFailed")
