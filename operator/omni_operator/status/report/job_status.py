"""PURE: status of a job, derived from its situation, the observed objects and the trainer's reports.

The status depends only on the last written status and the current observation, so a resync of an idle job writes
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime

from omni_operator.api.names import REWARD_GROUP, ROLLOUT_GROUP, TRAINER_GROUP
from omni_operator.api.status import (
    COUNT_LIMIT,
    FAILURES_KEPT,
    Children,
    Failure,
    PodCounts,
    RolloutStatus,
    Status,
    TrainerWarning,
    Weights,
)
from omni_operator.status.condition_value import false_because, value_of
from omni_operator.status.decisions.rolling import count_updated
from omni_operator.status.decisions.situation import (
    Creating,
    Failing,
    Finished,
    Situation,
    Suspended,
    Suspending,
)
from omni_operator.status.decisions.snapshot import Snapshot
from omni_operator.status.decisions.verdict import InProgress, Stage, Succeeded
from omni_operator.status.observed import evidence
from omni_operator.status.observed.job_facts import JobFacts
from omni_operator.status.observed.observation import Attempt, Refusal
from omni_operator.status.observed.running_pods import as_running
from omni_operator.status.observed.timestamps import format_timestamp, parse_timestamp
from omni_operator.status.observed.trainer_report import add_warning
from omni_operator.status.reasons.names import CHANGED_BY_OTHERS, CHECKPOINT_REQUESTED

from .conditions import derive_conditions, keep_conditions, refuse_spec, review_end, update_conditions
from .progress import update_checkpoint, update_progress, update_usage, update_weights


def derive_status(job: Snapshot, situation: Situation, refusal: Refusal | None, others: str) -> Status:
    """Status of a job with a valid spec, after the steps of a pass.

    Args:
        refusal: the API server's answer, if it refused a step.
        others: what other programs change again after each correction.
    """
    job = replace(job, facts=as_running(job.facts, job.attempt))
    if isinstance(situation, Finished):
        # Only the last report, remaining pods, refusals and the observed generation still change.
        conditions = update_conditions(job, review_end(job, refusal))
        return job.status.model_copy(update={"conditions": conditions, **_reported(job, situation)})
    attempt = job.attempt
    if attempt.number > job.status.attempts > 0:
        job = replace(job, status=_new_attempt(job.status))
    if isinstance(situation, Creating) and attempt.rayjob and attempt.number == situation.attempt:
        situation = InProgress(Stage.QUEUED if attempt.rayjob.suspended else Stage.STARTING)
    running = _running_since(job, situation)
    may_run = isinstance(situation, InProgress) or (
        isinstance(situation, Suspending) and situation.reason == CHECKPOINT_REQUESTED
    )
    ended = situation.at if isinstance(situation, Succeeded) else None
    derived = job.status.model_copy(
        update={
            "conditions": update_conditions(job, derive_conditions(job, situation, refusal, others)),
            "attempts": attempt.number,
            "usage": update_usage(job, running, ended, may_run=may_run),
            "children": _children(attempt, job.status.children),
            "running_time": format_timestamp(running) if running and may_run else None,
            **_times(job, situation),
            **_reported(job, situation),
        }
    )
    return _with_failure(derived, situation, job.now) if isinstance(situation, Failing) else derived


def derive_unknown_status(job: Snapshot, refusal: Refusal | None, others: str) -> Status:
    """Status of a job about which nothing else can be decided.

    Args:
        refusal: refusal of the request that reads existing objects; None if the operator waits.
        others: message about other clients that keep changing the job's objects.
    """
    table = {"Updated": false_because(CHANGED_BY_OTHERS, others)}
    if refusal:
        table = {"Ready": false_because(refusal.kind, refusal.text)}
    return job.status.model_copy(update={"conditions": update_conditions(job, table)})


def derive_invalid_status(job: Snapshot, text: str) -> Status:
    """Status of a job with an invalid spec.

    While an attempt runs, only `Updated` changes, because the attempt continues. A suspended job stays suspended.
    """
    generation = {"observed_generation": job.facts.generation}
    if job.status.finished:
        return job.status.model_copy(update=generation)
    table = refuse_spec(text)
    suspended = job.status.condition("Suspended")
    if suspended and suspended.status != "False":
        # The operator deleted the attempt. Without this record, it would count as deleted by someone else.
        table = {**table, "Suspended": value_of(suspended)}
    if job.observed.rayjobs and job.status.conditions:
        table = {**keep_conditions(job.status, table), "Updated": table["Updated"]}
    return job.status.model_copy(update={**generation, "conditions": update_conditions(job, table)})


def find_deadlines(job: Snapshot, situation: Situation) -> Iterator[datetime]:
    """When a running job is stalled, its weights are too old, or it has started by a clock that is ahead.

    Args:
        job: with the status that was derived from the situation.
    """
    if not isinstance(situation, InProgress):
        return
    rayjob = job.attempt.rayjob
    if rayjob and rayjob.started and rayjob.started > job.now:
        yield rayjob.started
    stalled = job.status.condition("ProgressStalled")
    if job.stalls_at and stalled and stalled.status == "False":
        yield job.stalls_at
    if job.weights_expire_at and job.status.is_true("WeightsInSync"):
        yield job.weights_expire_at


def _reported(job: Snapshot, situation: Situation) -> dict[str, object]:
    """The parts that also change after the end: what the trainer reported, and how many pods there are."""
    return {
        "observed_generation": job.facts.generation,
        "progress": update_progress(job),
        "weights": update_weights(job),
        "checkpoint": update_checkpoint(job),
        "warnings": _warnings(job, situation),
        "rollout": _rollout(job.facts, job.attempt),
        "reward": _reward(job.facts, job.attempt),
    }


def _new_attempt(previous: Status) -> Status:
    """The status with the fields of a single attempt reset."""
    progress = previous.progress.model_copy(
        update={"samples": None, "unscored_samples": None, "heartbeat_time": None, "estimated_remaining_seconds": None}
    )
    return previous.model_copy(
        update={
            "progress": progress,
            "weights": Weights(),
            "running_time": None,
            "usage": previous.usage.model_copy(update={"accelerators": None, "counted_time": None}),
            "warnings": (),
            "children": Children(),
        }
    )


def _running_since(job: Snapshot, situation: Situation) -> datetime | None:
    """Start of the attempt's trainer; remembered, because its RayJob may be gone."""
    written = parse_timestamp(job.status.running_time)
    if job.attempt.rayjob and job.attempt.rayjob.started:
        return job.trainer_started or written or job.now
    starting = isinstance(situation, InProgress) and situation.stage is not Stage.RUNNING
    return None if starting else written


def _times(job: Snapshot, situation: Situation) -> dict[str, str | None]:
    """Times of the job and its attempt. A suspension restarts activeDeadlineSeconds, as for Jobs.

    The job ends when the operator observes it: ttlSecondsAfterFinished must not depend on KubeRay's clock.
    """
    status = job.status
    rayjob = job.attempt.rayjob
    begun = format_timestamp(rayjob.created) if rayjob else status.attempt_start_time
    begun = begun if job.attempt.number else None
    ended = isinstance(situation, Succeeded) or (isinstance(situation, Failing) and situation.why != "")
    return {
        "start_time": None if isinstance(situation, Suspended) else status.start_time or begun,
        "attempt_start_time": begun,
        "completion_time": format_timestamp(job.now) if ended else status.completion_time,
    }


def _warnings(job: Snapshot, situation: Situation) -> tuple[TrainerWarning, ...]:
    """The trainer's warnings, and the last one about a container that is not Ray's while the trainer runs."""
    report = job.attempt.report
    kept = report.warnings if report and report.warnings else job.status.warnings
    last = next((found for found in job.status.warnings if found.reason == evidence.SIDECAR), None)
    if isinstance(situation, InProgress) and situation.stage is Stage.RUNNING:
        text = evidence.sidecar_problem(job.attempt.pods)
        if text and (last is None or last.message != text):
            at = format_timestamp(job.now)
            last = TrainerWarning(attempt=job.attempt.number, reason=evidence.SIDECAR, message=text, time=at)
    return add_warning(kept, last) if last else kept


def _with_failure(status: Status, failing: Failing, now: datetime) -> Status:
    """Add the failure, unless the attempt already has one."""
    if any(failure.attempt == status.attempts for failure in status.failures):
        return status
    failure = Failure(
        attempt=status.attempts,
        reason=failing.reason,
        message=failing.text,
        at=format_timestamp(now),
        checkpoint=status.checkpoint.last,
        counted=failing.counted,
    )
    disruptions = status.disruptions_counted + failing.is_disruption
    return status.model_copy(
        update={
            "failures": (*status.failures, failure)[-FAILURES_KEPT:],
            "failures_counted": min(status.failures_counted + failing.counted, COUNT_LIMIT),
            "disruptions_counted": min(disruptions, COUNT_LIMIT),
        }
    )


def _children(attempt: Attempt, before: Children) -> Children:
    """Objects of the attempt. Uids stay after a deletion: they tell which pods are left of the attempt."""
    rayjob = attempt.rayjob
    cluster = attempt.cluster
    uids = Children(
        ray_job_uid=rayjob.uid if rayjob else before.ray_job_uid,
        ray_cluster_uid=cluster.uid if cluster else before.ray_cluster_uid,
    )
    if rayjob is None:
        return uids
    name = cluster.name if cluster else rayjob.cluster or None
    return uids.model_copy(
        update={"ray_job": rayjob.name, "ray_cluster": name, "dashboard_url": rayjob.dashboard or None}
    )


def _rollout(facts: JobFacts, attempt: Attempt) -> RolloutStatus:
    """Pods with engines: rollout pods, or the trainer's pods."""
    cluster = attempt.cluster
    desired = facts.rollouts.pods or facts.trainer.pods
    selector = None
    if facts.rollouts.pods:
        ready = attempt.ready_pods(ROLLOUT_GROUP)
        updated = count_updated(facts, attempt, ROLLOUT_GROUP)
        selector = f"ray.io/cluster={cluster.name},ray.io/group={ROLLOUT_GROUP}" if cluster else None
    else:
        ready = attempt.ready_pods(TRAINER_GROUP) if facts.judges.pods else attempt.ready_workers
        ready = min(ready, desired)
        updated = desired if cluster else 0
    return RolloutStatus(desired=desired, ready=ready, updated=updated, summary=f"{ready}/{desired}", selector=selector)


def _reward(facts: JobFacts, attempt: Attempt) -> PodCounts | None:
    """Reward pods; None if the judge has none, or there is no judge."""
    if not facts.judges.pods:
        return None
    return PodCounts(
        desired=facts.judges.pods,
        ready=attempt.ready_pods(REWARD_GROUP),
        updated=count_updated(facts, attempt, REWARD_GROUP),
    )
