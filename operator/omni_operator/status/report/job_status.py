"""PURE: status of a job, derived from its situation, the observed objects and the trainer's reports.

The status depends only on the last written status and the current observation, so a resync of an idle job writes
nothing.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime

from omni_operator.api.names import REWARD_GROUP, ROLLOUT_GROUP, TRAINER_GROUP
from omni_operator.api.status import (
    COUNT_LIMIT,
    FAILURES_KEPT,
    Children,
    Condition,
    Failure,
    JobState,
    PodCounts,
    RolloutStatus,
    Status,
    TrainerWarning,
    Weights,
)
from omni_operator.status.condition_value import CHANGED_BY_OTHERS, CHECKPOINT_REQUESTED, ConditionValue
from omni_operator.status.decisions.situation import (
    Creating,
    Failing,
    Finished,
    Situation,
    SpecRefused,
    Suspended,
    Suspending,
)
from omni_operator.status.decisions.snapshot import Snapshot
from omni_operator.status.decisions.verdict import InProgress, Stage, Succeeded
from omni_operator.status.observed import evidence
from omni_operator.status.observed.job_facts import JobFacts
from omni_operator.status.observed.observation import Attempt, Refusal
from omni_operator.status.observed.running_pods import as_running
from omni_operator.status.observed.timestamps import format_timestamp
from omni_operator.status.observed.trainer_report import add_warning

from .conditions import derive_conditions, update_conditions
from .progress import update_reported, update_usage


def derive_status(job: Snapshot, situation: Situation, refusal: Refusal | None) -> Status:
    """Status of a job after the steps of a pass.

    Args:
        refusal: the API server's answer, if it refused a step.
    """
    attempt = job.attempt
    settled = isinstance(situation, SpecRefused | Finished)
    if attempt.number > job.status.attempts > 0 and not settled:
        job = replace(job, status=_new_attempt(job.status))
    job = replace(job, facts=as_running(job.facts, attempt))
    if isinstance(situation, Creating) and attempt.rayjob and attempt.number == situation.attempt:
        situation = InProgress(Stage.QUEUED if attempt.rayjob.suspended else Stage.STARTING)
    conditions = derive_conditions(job, situation, refusal)
    changed: dict[str, object] = {"observed_generation": job.facts.generation, "conditions": conditions}
    if not isinstance(situation, SpecRefused):
        changed |= {"warnings": _warnings(job, situation), **_count_pods(job.facts, attempt)}
        if not isinstance(situation, Finished):
            changed |= _follow_attempt(job, situation)
        changed |= update_reported(job)
    derived = job.status.model_copy(update=changed)
    if isinstance(situation, Failing):
        derived = _with_failure(derived, situation, job.now)
    return with_state(derived)


def _follow_attempt(job: Snapshot, situation: Situation) -> dict[str, object]:
    """The parts of a status that change with the attempt: its objects, times and usage."""
    running = _running_since(job, situation)
    may_run = isinstance(situation, InProgress) or (
        isinstance(situation, Suspending) and situation.reason == CHECKPOINT_REQUESTED
    )
    ended = situation.at if isinstance(situation, Succeeded) else None
    return {
        "attempts": job.attempt.number,
        "children": _children(job.attempt, job.status.children),
        "running_time": format_timestamp(running) if running and may_run else None,
        **_times(job, situation),
        "usage": update_usage(job, running, ended, may_run=may_run),
    }


def derive_unknown_status(job: Snapshot, refusal: Refusal | None) -> Status:
    """Status of a job about which nothing else can be decided.

    Args:
        refusal: refusal of the request that reads existing objects; None if the operator waits.
    """
    table = {"Updated": ConditionValue("False", CHANGED_BY_OTHERS, job.changed_by_others)}
    if refusal:
        table = {"Ready": ConditionValue("False", refusal.kind, refusal.text)}
    return with_state(job.status.model_copy(update={"conditions": update_conditions(job, table)}))


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
    if job.attempt.rayjob and job.attempt.rayjob.started:
        return job.trainer_started or job.running_since or job.now
    starting = isinstance(situation, InProgress) and situation.stage is not Stage.RUNNING
    return None if starting else job.running_since


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
    last = next((warning for warning in job.status.warnings if warning.reason == evidence.SIDECAR), None)
    if isinstance(situation, InProgress) and situation.stage is Stage.RUNNING:
        text = job.attempt.sidecar_problem
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


def _count_pods(facts: JobFacts, attempt: Attempt) -> dict[str, PodCounts | None]:
    """Pods with engines, which are rollout pods or the trainer's, and reward pods, if a judge has any."""
    wanted = {policy.group: policy.template for policy in facts.rolling}
    # pods of the current spec, whether or not they serve
    updated = Counter(
        pod.group for pod in attempt.pods if not pod.deleting and pod.template == wanted.get(pod.group, pod.template)
    )
    desired = facts.rollouts.pods or facts.trainer.pods
    cluster = attempt.cluster
    if facts.rollouts.pods:
        ready = attempt.ready[ROLLOUT_GROUP]
    else:
        ready = min(attempt.ready[TRAINER_GROUP] if facts.judges.pods else attempt.ready_workers, desired)
        updated[ROLLOUT_GROUP] = desired if cluster else 0
    selector = None
    if cluster and facts.rollouts.pods:
        selector = f"ray.io/cluster={cluster.name},ray.io/group={ROLLOUT_GROUP}"
    rollout = RolloutStatus(
        desired=desired,
        ready=ready,
        updated=updated[ROLLOUT_GROUP],
        summary=f"{ready}/{desired}",
        selector=selector,
    )
    judges = facts.judges.pods
    reward = PodCounts(desired=judges, ready=attempt.ready[REWARD_GROUP], updated=updated[REWARD_GROUP])
    return {"rollout": rollout, "reward": reward if judges else None}


def with_state(status: Status) -> Status:
    """The status with `state` and `reason` that its conditions say; without conditions, unchanged."""
    conditions = {condition.type: condition for condition in status.conditions}
    if not {"Admitted", "Ready", "Suspended", "Succeeded", "Failed"} <= conditions.keys():
        return status
    state, reason = _find_state(conditions, status)
    return status.model_copy(update={"state": state, "reason": reason})


def _find_state(found: dict[str, Condition], status: Status) -> tuple[JobState, str]:
    admitted = found["Admitted"]
    succeeded = found["Succeeded"]
    suspended = found["Suspended"]
    if succeeded.status == "True":
        return "Succeeded", succeeded.reason
    if found["Failed"].status == "True":
        return "Failed", found["Failed"].reason
    if admitted.reason == "InvalidSpec":
        return "Pending", admitted.reason
    if suspended.status != "False":
        return "Suspended" if suspended.status == "True" else "Suspending", suspended.reason
    if succeeded.reason == "BetweenAttempts":
        last = status.failures[-1] if status.failures else None
        if last and last.attempt == status.attempts:
            return "Retrying", last.reason
        return "Pending", succeeded.reason  # resumed: the objects of the last attempt are still being deleted
    if admitted.reason == "Queued":
        return "Queued", admitted.reason
    if admitted.status == "False":
        return "Pending", admitted.reason
    if succeeded.reason == "Running":
        return "Running", _reason_of_running(found)
    return "Starting", found["Ready"].reason


def _reason_of_running(found: dict[str, Condition]) -> str:
    """The first problem of a running attempt; without one, why it is ready."""
    ready, stalled, weights = (found.get(kind) for kind in ("Ready", "ProgressStalled", "WeightsInSync"))
    assert ready is not None  # the caller checked
    if ready.status == "True" and stalled and stalled.status == "True":
        return stalled.reason
    if ready.status == "True" and weights and weights.status == "False":
        return weights.reason
    return ready.reason
