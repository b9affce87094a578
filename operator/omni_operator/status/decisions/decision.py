"""PURE: next steps of a job.

Invariants:
- At most one attempt exists, by the uids of owners; labels have no influence. The next one is created when nothing of
  the last one is left, because both would write the same checkpoints, or after `Timeouts.leftovers`.
- A failure is written to the status before the operator reacts to it, so a crash in between repeats nothing.
- Attempts are numbered without gaps, from existing objects and the status, so no name is used twice.
- Nothing is created while the job is being deleted, has ended, or is suspended.

A deleted job needs no step: its objects have owner references, by which Kubernetes deletes them.
"""

from dataclasses import replace
from datetime import datetime, timedelta
from itertools import takewhile

from omni_operator.api.names import TRAINER_GROUP
from omni_operator.status.condition_value import CHECKPOINT_REQUESTED
from omni_operator.status.reasons.names import Action

from .queue_requests import find_request
from .rolling import find_steps
from .scaling import follow_pods, scale
from .situation import (
    BetweenAttempts,
    CreateAttempt,
    Creating,
    Decision,
    DeleteRayJob,
    DeleteSelf,
    EnsureShared,
    Failing,
    Finished,
    ProtectPods,
    RequestCheckpoint,
    Situation,
    SpecRefused,
    Step,
    Suspended,
    Suspending,
)
from .snapshot import Snapshot
from .verdict import AttemptFailed, InProgress, Stage, Succeeded, judge_attempt


def decide(job: Snapshot) -> Decision:
    """Situation and next steps of a job."""
    if job.unreadable_spec:
        return Decision(SpecRefused(job.unreadable_spec))
    decision = _decide(job)
    # The operator's settings may have become stricter: a running attempt continues to its end.
    if job.refused_spec and _needs_spec(decision.situation, job):
        return Decision(SpecRefused(job.refused_spec))
    return decision


def _decide(job: Snapshot) -> Decision:
    if job.status.finished:
        return _finished(job)
    verdict = judge_attempt(job)
    if isinstance(verdict, Succeeded):
        return Decision(verdict, wake=job.now)
    if isinstance(verdict, AttemptFailed) and verdict.reason == "DeadlineExceeded":
        return Decision(_failing(job, verdict), wake=job.now)
    if job.facts.suspend:
        return _suspend(job, running=isinstance(verdict, InProgress) and verdict.stage is Stage.RUNNING)
    if verdict is None:
        return _next(job)
    if isinstance(verdict, AttemptFailed):
        return Decision(_failing(job, verdict), wake=job.now)
    if job.facts.outdated and verdict.stage is not Stage.RUNNING:
        # It has nothing to lose. The status says so before anything is deleted, so this is no failure.
        text = f"attempt {job.attempt.number} does not run yet, and is replaced by one with the current spec"
        return Decision(BetweenAttempts(text), _deletions(job) if job.was_stopped else ())
    return _follow(job, verdict)


def _needs_spec(situation: Situation, job: Snapshot) -> bool:
    """Whether a job can only wait while its spec is refused: its next step would be an attempt."""
    match situation:
        case Creating():
            return True
        case BetweenAttempts():
            return job.observed.empty
        case Suspended():  # a suspension that is under way is recorded first
            return job.suspending is None
        case _:
            return False


def _follow(job: Snapshot, verdict: InProgress) -> Decision:
    """Have the attempt in progress follow the spec, its queue and its autoscaling."""
    attempt = job.attempt
    steps: tuple[Step, ...]
    if verdict.stage is Stage.QUEUED:
        steps, late = find_request(attempt, job.queued_since, job.timeouts.queue, job.now)
    else:
        replacements, late = find_steps(job.facts, attempt, job.now)
        # Both change the same groups, so one follows the other.
        patience = job.timeouts.queue if verdict.stage is Stage.STARTING else None
        changes = scale(job.facts, attempt, job.now, patience=patience)
        steps = follow_pods(job.facts, attempt, changes) or replacements
    cluster = attempt.cluster
    if cluster and not cluster.deleting and cluster.uid != job.status.children.ray_cluster_uid:
        trainer = attempt.sizes.get(TRAINER_GROUP) or job.facts.trainer
        steps = (ProtectPods(cluster, trainer.pods), *steps)
    # A RayJob that was deleted is there again if etcd was restored from an older snapshot.
    earlier = [step for step in _deletions(job) if step.uid != (attempt.rayjob.uid if attempt.rayjob else None)]
    wake = min((at for at in (verdict.wake, job.deadline, late) if at), default=None)
    return Decision(verdict, (*earlier, EnsureShared(), *steps), wake)


def _next(job: Snapshot) -> Decision:
    """Create the next attempt, after the last one is gone and the pause between attempts is over."""
    number = job.attempt.number
    failed_at = job.failed_at
    stopped_at = job.admitted_at if job.was_stopped else None
    deletes = _deletions(job)
    patient_until = (failed_at or stopped_at or job.facts.created) + job.timeouts.leftovers
    if not job.observed.empty and (deletes or job.now < patient_until):
        before = f"attempt {number}" if number else "the deleted job of this name"
        text = f"attempt {number + 1} starts when all objects of {before} are deleted{_describe_delay(job)}"
        return Decision(BetweenAttempts(text), deletes, patient_until)
    changed = job.status.observed_generation not in (None, job.facts.generation)  # which ends the pause
    if failed_at and number and not changed:
        # Failures that do not count, such as deletions of the RayJob, double the pause while they follow each other.
        uncounted = len(list(takewhile(lambda failure: not failure.counted, reversed(job.status.failures))))
        doublings = min(max(job.status.failures_counted, uncounted) - 1, 16)
        pause = min(job.timeouts.retry * 2**doublings, job.timeouts.retry_most)
        if _is_ahead(failed_at + pause, job.now, pause):
            return Decision(BetweenAttempts(f"attempt {number + 1} starts after a pause"), wake=failed_at + pause)
    return Decision(Creating(number + 1), (EnsureShared(required=True), CreateAttempt(number + 1)))


def _failing(job: Snapshot, failed: AttemptFailed) -> Failing:
    """Consequences of a failed attempt."""
    facts = job.facts
    # A disruption is no failure, nor is a RayJob that a user deleted, which no rule can name: neither is counted.
    default = Action.RETRY_IGNORE_LIMIT if failed.reason in ("ChildDeleted", "Preempted") else Action.RETRY
    action = next((rule.action for rule in facts.rules if failed.reason in rule.reasons), default)
    failing = Failing(failed.reason, failed.text, action)
    why = ""
    if failed.reason == "DeadlineExceeded":
        why = "no retry: the deadline covers all attempts"
    elif action is Action.FAIL:
        why = f"no retry: spec.failurePolicy says {Action.FAIL.value} for {failed.reason}"
    elif action is Action.RETRY and job.status.failures_counted >= facts.backoff_limit:
        why = f"no retry: spec.backoffLimit is {facts.backoff_limit}"
    elif failing.is_disruption and job.status.disruptions_counted >= facts.disruption_limit:
        why = f"no retry: spec.disruptionLimit is {facts.disruption_limit}"
    return replace(failing, why=why)


def _suspend(job: Snapshot, *, running: bool) -> Decision:
    """Request a checkpoint, wait for it up to suspendPolicy.graceSeconds, then delete the attempt."""
    if replace(job.observed, leftovers=0).empty:  # what others own, or say that they do, is no pod of the job
        return Decision(Suspended())
    begun = job.suspending
    since = job.suspending_since
    report = job.attempt.report
    # An earlier process may have received its reports: after a restart the next one can take as long as a step.
    reported = report or (job.attempt.number == job.status.attempts and job.status.progress.heartbeat_time)
    saved = report and report.checkpoint_at and report.checkpoint_at >= since
    grace = job.facts.grace
    stopping = begun and begun.reason == "Stopping"
    if grace and running and reported and not (stopping or saved) and _is_ahead(since + grace, job.now, grace):
        waiting = Suspending(CHECKPOINT_REQUESTED, "waiting for the trainer to save a checkpoint")
        return Decision(waiting, (RequestCheckpoint(since),), since + grace)
    return Decision(Suspending("Stopping", f"deleting the pods{_describe_delay(job)}"), _deletions(job))


def _describe_delay(job: Snapshot) -> str:
    """Who has to answer before the objects of attempts are gone, as the end of a text; empty if nobody is known."""
    causes = [
        f"KubeRay has not removed its finalizer from RayJob {rayjob.name} yet"
        for rayjob in job.observed.rayjobs
        if rayjob.deleting
    ]
    nodes = sorted({pod.node for pod in job.observed.pods if pod.unreachable})
    causes += [f"node {node} does not answer: delete it if it does not come back" for node in nodes]
    return "".join(f"; {cause}" for cause in causes)


def _is_ahead(end: datetime, now: datetime, wait: timedelta) -> bool:
    """Whether a wait still lasts. An end further ahead than a wait is from before the clock was set back: it is over.

    As much again is allowed for the clocks of several replicas, which differ.
    """
    return now < end <= now + 2 * wait


def _finished(job: Snapshot) -> Decision:
    """Delete RayJobs that KubeRay does not stop itself, and the job after ttlSecondsAfterFinished."""
    expires = job.completed_at + job.facts.ttl if job.facts.ttl is not None else None
    if expires is not None and job.now >= expires:
        return Decision(Finished(), (DeleteSelf(),))
    kept = ("Complete", "Failed")  # KubeRay deletes their pods; one that it refused holds quota of a queue
    return Decision(Finished(), () if job.facts.retain else _deletions(job, kept), expires)


def _deletions(job: Snapshot, kept: tuple[str, ...] = ()) -> tuple[DeleteRayJob, ...]:
    """Deletions of all RayJobs, except in states that are kept, and those that are being deleted."""
    live = (rayjob for rayjob in job.observed.rayjobs if not rayjob.deleting and rayjob.deployment not in kept)
    return tuple(DeleteRayJob(rayjob.name, rayjob.uid) for rayjob in live)
