"""PURE: next steps of a job.

Invariants:
- At most one attempt exists, by the uids of owners; labels have no influence. The next one is created when nothing of
  the last one is left, because both would write the same checkpoints, or after `Timeouts.leftovers`.
- A failure is written to the status before the operator reacts to it, so a crash in between repeats nothing.
- Attempts are numbered without gaps, from existing objects and the status, so no name is used twice.
- Nothing is created while the job is being deleted, has ended, or is suspended.

A deleted job needs no step: its objects have owner references, by which Kubernetes deletes them.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from itertools import takewhile

from omni_operator.api.status import Status
from omni_operator.status.observed.job_facts import JobFacts, action_for, is_disruption
from omni_operator.status.observed.observation import Observation, ObservedRayJob
from omni_operator.status.observed.timestamps import parse_timestamp
from omni_operator.status.reasons.names import Action

from .partial_admission import find_request
from .reserved_quota import follow_pods
from .rolling import find_steps
from .scaling import scale
from .situation import (
    CHECKPOINT_REQUESTED,
    Active,
    BetweenAttempts,
    CreateAttempt,
    Creating,
    Decision,
    DeleteRayJob,
    DeleteSelf,
    EnsureShared,
    Failing,
    Finished,
    RequestCheckpoint,
    Situation,
    Step,
    Succeeding,
    Suspended,
    Suspending,
)
from .timeouts import Timeouts
from .verdict import AttemptFailed, InProgress, Stage, Succeeded, Verdict, classify_attempt

SUSPENDING = frozenset({CHECKPOINT_REQUESTED, "Stopping"})


def decide(facts: JobFacts, observed: Observation, status: Status, timeouts: Timeouts, now: datetime) -> Decision:
    """Next steps of a job with a valid spec.

    Args:
        status: the last written status.
    """
    if status.finished:
        return _finished(facts, observed, status, now)
    current = max(status.attempts, observed.newest)
    verdict = _verdict(facts, observed, status, current, timeouts, now)
    if isinstance(verdict, Succeeded):
        return Decision(Succeeding(current, verdict.at), wake=now)
    if isinstance(verdict, AttemptFailed) and verdict.reason == "DeadlineExceeded":
        return Decision(_failing(facts, status, current, verdict), wake=now)
    if facts.suspend:
        return _suspend(facts, observed, status, current, verdict, now)
    if verdict is None:
        return _next(facts, observed, status, current, timeouts, now)
    if isinstance(verdict, AttemptFailed):
        return Decision(_failing(facts, status, current, verdict), wake=now)
    if facts.outdated and verdict.stage is not Stage.RUNNING:
        # It has nothing to lose. The status says so before anything is deleted, so this is no failure.
        text = f"attempt {current} does not run yet, and is replaced by one with the current spec"
        deletes = tuple(_delete(rayjob) for rayjob in observed.rayjobs if not rayjob.deleting)
        return Decision(BetweenAttempts(text), deletes if _was_stopped(status) else ())
    if verdict.stage is Stage.QUEUED:
        request, late = find_request(observed, current, status, timeouts, now)
        steps: tuple[Step, ...] = (request,) if request else ()
    else:
        replacements, late = find_steps(facts, observed, current, now)
        # Both change the same groups, so one follows the other.
        patience = timeouts.queue if verdict.stage is Stage.STARTING else None
        changes = scale(facts, observed, current, now, patience=patience)
        steps = follow_pods(facts, observed, current, changes) or replacements
    wake = min((at for at in (verdict.wake, _active_deadline(facts, status), late) if at), default=None)
    # A RayJob that was deleted is there again if etcd was restored from an older snapshot.
    earlier = tuple(_delete(found) for found in observed.rayjobs if found.attempt < current and not found.deleting)
    cluster = observed.cluster(current)
    new = cluster if cluster and not cluster.deleting and cluster.uid != status.children.ray_cluster_uid else None
    return Decision(Active(current, verdict), (*earlier, EnsureShared(new), *steps), wake)


def needs_spec(situation: Situation, observed: Observation, status: Status) -> bool:
    """Whether a job can only wait while its spec is refused: its next step would be an attempt."""
    suspended = status.condition("Suspended")
    match situation:
        case Creating():
            return True
        case BetweenAttempts():
            return observed.empty
        case Suspended():  # a suspension that is under way is recorded first
            return suspended is None or suspended.status != "Unknown"
        case _:
            return False


def _verdict(
    facts: JobFacts, observed: Observation, status: Status, current: int, timeouts: Timeouts, now: datetime
) -> Verdict | None:
    """State of the current attempt; None if the first or the next attempt is due."""
    deadline = _active_deadline(facts, status)
    over = deadline is not None and now >= deadline
    late = AttemptFailed("DeadlineExceeded", f"ran longer than spec.activeDeadlineSeconds ({_seconds(facts)})")
    if current == 0 or any(failure.attempt == current for failure in status.failures):
        return late if over and current else None
    rayjob = observed.rayjob(current)
    if _was_stopped(status) and (rayjob is None or rayjob.deleting):
        return None
    admitted = status.condition("Admitted")
    queued = (
        admitted is not None and admitted.reason == "Queued"
    )  # as last written; the queue may have admitted it since
    since = now if queued else parse_timestamp(admitted.last_transition_time) if admitted else None
    verdict = classify_attempt(facts, observed, current, since, timeouts, now)
    return late if over and isinstance(verdict, InProgress) else verdict


def _next(
    facts: JobFacts, observed: Observation, status: Status, current: int, timeouts: Timeouts, now: datetime
) -> Decision:
    """Create the next attempt, after the last one is gone and the pause between attempts is over."""
    failure = next((found for found in status.failures if found.attempt == current), None)
    failed_at = parse_timestamp(failure.at) if failure else None
    deletes = tuple(_delete(rayjob) for rayjob in observed.rayjobs if not rayjob.deleting)
    patient_until = (failed_at or _stopped_at(status) or facts.created) + timeouts.leftovers
    if not observed.empty and (deletes or now < patient_until):
        before = f"attempt {current}" if current else "the deleted job of this name"
        text = f"attempt {current + 1} starts when all objects of {before} are deleted"
        return Decision(BetweenAttempts(text), deletes, patient_until)
    changed = status.observed_generation not in (None, facts.generation)  # which ends the pause
    pause = _pause(status, timeouts)
    due = failed_at + pause if failed_at and current and not changed else None
    if due and _is_ahead(due, now, pause):
        return Decision(BetweenAttempts(f"attempt {current + 1} starts after a pause"), wake=due)
    return Decision(Creating(current + 1), (EnsureShared(), CreateAttempt(current + 1)))


def _pause(status: Status, timeouts: Timeouts) -> timedelta:
    """Pause before the next attempt: doubled for each counted failure, up to a limit.

    Failures that do not count, such as deletions of the RayJob, double it as long as they follow each other.
    """
    uncounted = len(list(takewhile(lambda failure: not failure.counted, reversed(status.failures))))
    return min(timeouts.retry * 2 ** min(max(status.failures_counted, uncounted) - 1, 16), timeouts.retry_most)


def _failing(facts: JobFacts, status: Status, attempt: int, failed: AttemptFailed) -> Failing:
    """Consequences of a failed attempt."""
    action = action_for(facts, failed.reason)
    over_limit = action is Action.RETRY and status.failures_counted >= facts.backoff_limit
    endless = is_disruption(failed.reason, action) and status.disruptions_counted >= facts.disruption_limit
    # The job's deadline covers all attempts, so no other attempt can follow.
    deadline = failed.reason == "DeadlineExceeded"
    why = ""
    if deadline:
        why = "no retry: the deadline covers all attempts"
    elif action is Action.FAIL:
        why = f"no retry: spec.failurePolicy says {Action.FAIL.value} for {failed.reason}"
    elif over_limit:
        why = f"no retry: spec.backoffLimit is {facts.backoff_limit}"
    elif endless:
        why = f"no retry: spec.disruptionLimit is {facts.disruption_limit}"
    counted = action is not Action.RETRY_IGNORE_LIMIT
    return Failing(attempt, failed.reason, failed.text, action, counted, bool(why), why)


def _suspend(
    facts: JobFacts, observed: Observation, status: Status, current: int, verdict: Verdict | None, now: datetime
) -> Decision:
    """Request a checkpoint, wait for it up to suspendPolicy.graceSeconds, then delete the attempt."""
    if replace(observed, leftovers=0).empty:  # what others own, or say that they do, is no pod of the job
        return Decision(Suspended())
    condition = status.condition("Suspended")
    begun = condition is not None and condition.reason in SUSPENDING
    since = (parse_timestamp(condition.last_transition_time) if condition and begun else None) or now
    stopping = condition is not None and condition.reason == "Stopping"
    report = observed.report_of(current)
    running = isinstance(verdict, InProgress) and verdict.stage is Stage.RUNNING
    # An earlier process may have received its reports: after a restart the next one can take as long as a step.
    reported = report is not None or (current == status.attempts and status.progress.heartbeat_time is not None)
    if facts.grace and running and reported and not stopping and _is_ahead(since + facts.grace, now, facts.grace):
        answered = report is not None and report.checkpoint_at is not None and report.checkpoint_at >= since
        if not answered:
            text = "waiting for the trainer to save a checkpoint"
            return Decision(
                Suspending(CHECKPOINT_REQUESTED, text, since), (RequestCheckpoint(since),), since + facts.grace
            )
    deletes = tuple(_delete(rayjob) for rayjob in observed.rayjobs if not rayjob.deleting)
    return Decision(Suspending("Stopping", "deleting the pods", since), deletes)


def _is_ahead(end: datetime, now: datetime, wait: timedelta) -> bool:
    """Whether a wait still lasts. An end further ahead than a wait is from before the clock was set back: it is over.

    As much again is allowed for the clocks of several replicas, which differ.
    """
    return now < end <= now + 2 * wait


def _stopped_at(status: Status) -> datetime | None:
    """Time at which the wait after a suspension, or for the objects of a replaced attempt, began, from the status."""
    condition = status.condition("Admitted")
    return parse_timestamp(condition.last_transition_time) if condition and _was_stopped(status) else None


def _was_stopped(status: Status) -> bool:
    """Whether the operator stopped the last attempt, which did not fail: it was suspended, or is being replaced."""
    condition = status.condition("Suspended")
    admitted = status.condition("Admitted")
    suspended = condition is not None and (condition.status == "True" or condition.reason in SUSPENDING)
    return suspended or (admitted is not None and admitted.reason == "BetweenAttempts")


def _finished(facts: JobFacts, observed: Observation, status: Status, now: datetime) -> Decision:
    """Delete RayJobs that KubeRay does not stop itself, and the job after ttlSecondsAfterFinished."""
    ended = parse_timestamp(status.completion_time) or now
    expires = ended + facts.ttl if facts.ttl is not None else None
    if expires is not None and now >= expires:
        return Decision(Finished(), (DeleteSelf(),))
    kept = ("Complete", "Failed")  # KubeRay deletes their pods; one that it refused holds quota of a queue
    live = tuple(job for job in observed.rayjobs if not (facts.retain or job.deployment in kept or job.deleting))
    return Decision(Finished(), tuple(_delete(rayjob) for rayjob in live), expires)


def _active_deadline(facts: JobFacts, status: Status) -> datetime | None:
    started = parse_timestamp(status.start_time)
    return started + facts.active_deadline if started and facts.active_deadline is not None else None


def _seconds(facts: JobFacts) -> int:
    return int(facts.active_deadline.total_seconds()) if facts.active_deadline else 0


def _delete(rayjob: ObservedRayJob) -> DeleteRayJob:
    return DeleteRayJob(rayjob.name, rayjob.uid)
