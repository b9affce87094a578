"""PURE: status of a job, derived from its situation, the observed objects and the trainer's reports.

The status depends only on the last written status and the current observation, so a resync of an idle job writes
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

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
from omni_operator.status.condition_value import ConditionValue, Table, false_because, value_of
from omni_operator.status.decisions.rolling import count_updated
from omni_operator.status.decisions.scaling import review_scaling
from omni_operator.status.decisions.situation import (
    CHANGED_BY_OTHERS,
    CHECKPOINT_REQUESTED,
    Active,
    Creating,
    Failing,
    Finished,
    Situation,
    Succeeding,
    Suspended,
    Suspending,
)
from omni_operator.status.decisions.timeouts import Timeouts
from omni_operator.status.decisions.verdict import InProgress, Stage
from omni_operator.status.observed import evidence
from omni_operator.status.observed.job_facts import JobFacts, is_disruption
from omni_operator.status.observed.observation import Observation, ObservedRayCluster, Refusal, TrainerReport
from omni_operator.status.observed.running_pods import as_running, count_accelerators
from omni_operator.status.observed.timestamps import format_timestamp, parse_timestamp
from omni_operator.status.observed.trainer_report import add_warning
from omni_operator.status.report.conditions import (
    Heartbeat,
    derive_conditions,
    refuse_spec,
    review_end,
    review_output,
    review_spec,
    show_refusal,
    update_conditions,
)

from .progress import Counting, update_checkpoint, update_progress, update_usage, update_weights
from .spec_applied import review_update
from .state import with_state

STEPS_OF_SILENCE = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Inputs of a status besides the job.

    Attributes:
        refusal: the API server's answer, if it refused a step of this pass.
        refused_spec: why no attempt may start with the spec, while the present one continues.
        listening: time since which this process accepts reports.
        changed_by_others: what other programs change again after each correction.
    """

    timeouts: Timeouts
    now: datetime
    listening: datetime
    refusal: Refusal | None = None
    refused_spec: str | None = None
    changed_by_others: str = ""


def derive_status(
    facts: JobFacts, observed: Observation, previous: Status, situation: Situation, context: Context
) -> Status:
    """Status of a job; `previous` is the last written one."""
    if isinstance(situation, Finished):
        return _finished(facts, observed, previous, context)
    now = context.now
    attempt = max(previous.attempts, observed.newest)
    facts = as_running(facts, observed, attempt)
    updated = _updated(facts, observed, attempt, situation, context)
    if isinstance(situation, Creating) and (created := observed.rayjob(situation.attempt)):
        situation = Active(situation.attempt, InProgress(Stage.QUEUED if created.suspended else Stage.STARTING))
    base = _new_attempt(previous) if attempt > previous.attempts and previous.attempts else previous
    report = observed.report_of(attempt)
    heartbeat = find_heartbeat(facts, base, observed, attempt, context)
    table = derive_conditions(situation, facts, observed, context.refusal, updated, heartbeat, now)
    sent = review_output(facts, report, previous.condition("OutputSent"))
    table = {**table, **review_spec(facts), **review_scaling(facts, observed, attempt, now), "OutputSent": sent}
    if not facts.complete:
        table = {**table, **_keep(previous, review_spec(None))}
    weights = base.condition("WeightsInSync")
    if report is None and heartbeat.at and weights and table["ProgressStalled"].reason != "NotRunning":
        # An earlier process received the last report: its result stays until the next report.
        table = {**table, "WeightsInSync": value_of(weights)}
    running = _running_since(base, observed, attempt, situation, now)
    accelerators = count_accelerators(facts, observed.cluster(attempt))
    counting = _counting(base, situation, report, running, accelerators, now)
    derived = base.model_copy(
        update={
            "observed_generation": facts.generation,
            "conditions": update_conditions(previous, table, facts.generation, now),
            "attempts": attempt,
            "progress": update_progress(base.progress, report, facts),
            "weights": update_weights(base.weights, report),
            "checkpoint": update_checkpoint(base.checkpoint, report),
            "warnings": _warnings(base, report, observed, situation, now),
            "usage": update_usage(base, report, counting),
            "children": _children(observed, attempt, base.children),
            "rollout": _rollout(observed, attempt, facts),
            "reward": _reward(observed, attempt, facts),
            "running_time": format_timestamp(running) if running and counting.runs else None,
            **_times(base, observed, attempt, situation, now),
        }
    )
    return with_state(_with_failure(derived, situation, now) if isinstance(situation, Failing) else derived)


def _keep(previous: Status, table: Table) -> Table:
    """Conditions as they were, or as in `table` where there were none."""
    return {
        kind: value_of(written) if (written := previous.condition(kind)) else value for kind, value in table.items()
    }


def find_heartbeat(facts: JobFacts, status: Status, observed: Observation, attempt: int, context: Context) -> Heartbeat:
    """Last report of the running attempt's trainer, to this process or an earlier one."""
    report = observed.report_of(attempt)
    rayjob = observed.rayjob(attempt)
    step = (report.step_seconds or 0.0) if report else 0.0
    silence = max(context.timeouts.stall, timedelta(seconds=STEPS_OF_SILENCE * step))
    at = report.at if report else parse_timestamp(status.progress.heartbeat_time)
    # Silence counts only while the operator listened; a stall that was found before stays.
    if at and not status.is_true("ProgressStalled"):
        at = max(at, context.listening)
    started = rayjob.started if rayjob and rayjob.started and rayjob.started <= context.now else None
    if at and started:  # by a queue, after the report
        at = max(at, started)
    return Heartbeat(at, silence, facts.max_lag, facts.max_age, started)


def find_deadlines(
    facts: JobFacts, situation: Situation, status: Status, observed: Observation, context: Context
) -> Iterator[datetime]:
    """When a running job is stalled, its weights are too old, or it has started by a clock that is ahead.

    Args:
        status: as derived from the situation.
    """
    if not isinstance(situation, Active):
        return
    rayjob = observed.rayjob(status.attempts)
    if rayjob and rayjob.started and rayjob.started > context.now:
        yield rayjob.started
    report = observed.report_of(status.attempts)
    stalled = status.condition("ProgressStalled")
    heartbeat = find_heartbeat(facts, status, observed, status.attempts, context)
    if heartbeat.at and stalled and stalled.status == "False":
        yield heartbeat.at + heartbeat.silence
    if report and report.synced_at and status.is_true("WeightsInSync"):
        yield heartbeat.synced(report.synced_at) + heartbeat.max_age


def derive_unknown_status(
    facts: JobFacts, previous: Status, refusal: Refusal | None, others: str, now: datetime
) -> Status:
    """Status of a job about which nothing else can be decided.

    Args:
        refusal: refusal of the request that reads existing objects; None if the operator waits.
        others: message about other clients that keep changing the job's objects.
    """
    table = {"Updated": false_because(CHANGED_BY_OTHERS, others)}
    conditions = (
        show_refusal(previous, refusal, facts.generation, now)
        if refusal
        else update_conditions(previous, table, facts.generation, now)
    )
    return with_state(previous.model_copy(update={"conditions": conditions}))


def _finished(facts: JobFacts, observed: Observation, previous: Status, context: Context) -> Status:
    """Status after the end: only the last report, remaining pods, refusals and the observed generation still change."""
    report = observed.report_of(previous.attempts)
    facts = as_running(facts, observed, previous.attempts)
    finished = previous.model_copy(
        update={
            "observed_generation": facts.generation,
            "conditions": review_end(previous, context.refusal, facts.generation, context.now),
            "progress": update_progress(previous.progress, report, facts),
            "weights": update_weights(previous.weights, report),
            "checkpoint": update_checkpoint(previous.checkpoint, report),
            "warnings": _warnings(previous, report, observed, Finished(), context.now),
            "rollout": _rollout(observed, previous.attempts, facts),
            "reward": _reward(observed, previous.attempts, facts),
        }
    )
    return with_state(finished)


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


def _running_since(
    status: Status, observed: Observation, attempt: int, situation: Situation, now: datetime
) -> datetime | None:
    """Start of the attempt's trainer; remembered, because its RayJob may be gone."""
    rayjob = observed.rayjob(attempt)
    if rayjob and rayjob.started:
        return rayjob.started if rayjob.started <= now else parse_timestamp(status.running_time) or now
    if isinstance(situation, Active) and situation.going.stage is not Stage.RUNNING:
        return None
    return parse_timestamp(status.running_time)


def _counting(
    status: Status,
    situation: Situation,
    report: TrainerReport | None,
    running: datetime | None,
    accelerators: int,
    now: datetime,
) -> Counting:
    """Which seconds of the attempt a pass counts; `running` is the start of its trainer, as far as it is known."""
    kept = status.usage.accelerators
    runs = running is not None and _is_running(situation)
    if not runs:
        until = situation.at if isinstance(situation, Succeeding) else now if status.running_time else None
    elif kept not in (None, accelerators):
        until = now  # the seconds before the change count at the number before it
    else:
        until = report.at if report else None
    return Counting(
        running=running or parse_timestamp(status.running_time),
        until=until,
        runs=runs,
        held=accelerators if kept is None else kept,
        accelerators=accelerators if _is_running(situation) else None,
        now=now,
    )


def _is_running(situation: Situation) -> bool:
    """Whether the trainer may run: also while a suspension waits for its checkpoint."""
    waits = isinstance(situation, Suspending) and situation.reason == CHECKPOINT_REQUESTED
    return waits or isinstance(situation, Active)


def _times(
    status: Status, observed: Observation, attempt: int, situation: Situation, now: datetime
) -> dict[str, str | None]:
    """Times of the job and its attempt. A suspension restarts activeDeadlineSeconds, as for Jobs.

    The job ends when the operator observes it: ttlSecondsAfterFinished must not depend on KubeRay's clock.
    """
    rayjob = observed.rayjob(attempt)
    begun = format_timestamp(rayjob.created) if rayjob else status.attempt_start_time
    ended = isinstance(situation, Succeeding) or (isinstance(situation, Failing) and situation.final)
    start = None if isinstance(situation, Suspended) else status.start_time or (begun if attempt else None)
    return {
        "start_time": start,
        "attempt_start_time": begun if attempt else None,
        "completion_time": format_timestamp(now) if ended else status.completion_time,
    }


def _warnings(
    status: Status, report: TrainerReport | None, observed: Observation, situation: Situation, now: datetime
) -> tuple[TrainerWarning, ...]:
    """The trainer's warnings, and the last one about a container that is not Ray's while the trainer runs."""
    kept = report.warnings if report and report.warnings else status.warnings
    last = next((found for found in status.warnings if found.reason == evidence.SIDECAR), None)
    if isinstance(situation, Active) and situation.going.stage is Stage.RUNNING:
        text = evidence.sidecar_problem(observed.pods_of(situation.attempt))
        if text and (last is None or last.message != text):
            at = format_timestamp(now)
            last = TrainerWarning(attempt=situation.attempt, reason=evidence.SIDECAR, message=text, time=at)
    return add_warning(kept, last) if last else kept


def _with_failure(status: Status, failing: Failing, now: datetime) -> Status:
    """Add the failure, unless the attempt already has one."""
    if any(failure.attempt == failing.attempt for failure in status.failures):
        return status
    failure = Failure(
        attempt=failing.attempt,
        reason=failing.reason,
        message=failing.text,
        at=format_timestamp(now),
        checkpoint=status.checkpoint.last,
        counted=failing.counted,
    )
    return status.model_copy(
        update={
            "failures": (*status.failures, failure)[-FAILURES_KEPT:],
            "failures_counted": min(status.failures_counted + int(failing.counted), COUNT_LIMIT),
            "disruptions_counted": min(
                status.disruptions_counted + is_disruption(failing.reason, failing.action), COUNT_LIMIT
            ),
        }
    )


def _children(observed: Observation, attempt: int, before: Children) -> Children:
    """Objects of the attempt. Uids stay after a deletion: they tell which pods are left of the attempt."""
    rayjob = observed.rayjob(attempt)
    cluster = observed.cluster(attempt)
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


def _rollout(observed: Observation, attempt: int, facts: JobFacts) -> RolloutStatus:
    """Pods with engines: rollout pods, or the trainer's pods."""
    cluster = observed.cluster(attempt)
    if facts.rollouts.pods:
        return _rollout_pods(observed, attempt, facts, cluster)
    desired = facts.trainer.pods
    ready = observed.ready_workers(attempt)
    if facts.judges.pods:
        ready = observed.ready_pods(attempt, TRAINER_GROUP)
    ready = min(ready, desired)
    return RolloutStatus(desired=desired, ready=ready, updated=desired if cluster else 0, summary=f"{ready}/{desired}")


def _rollout_pods(
    observed: Observation, attempt: int, facts: JobFacts, cluster: ObservedRayCluster | None
) -> RolloutStatus:
    ready = observed.ready_pods(attempt, ROLLOUT_GROUP)
    selector = f"ray.io/cluster={cluster.name},ray.io/group={ROLLOUT_GROUP}" if cluster else None
    return RolloutStatus(
        desired=facts.rollouts.pods,
        ready=ready,
        updated=count_updated(facts, observed, attempt, ROLLOUT_GROUP),
        summary=f"{ready}/{facts.rollouts.pods}",
        selector=selector,
    )


def _reward(observed: Observation, attempt: int, facts: JobFacts) -> PodCounts | None:
    """Reward pods; None if the judge has none, or there is no judge."""
    if not facts.judges.pods:
        return None
    return PodCounts(
        desired=facts.judges.pods,
        ready=observed.ready_pods(attempt, REWARD_GROUP),
        updated=count_updated(facts, observed, attempt, REWARD_GROUP),
    )


def _updated(
    facts: JobFacts, observed: Observation, attempt: int, situation: Situation, context: Context
) -> ConditionValue:
    if context.refused_spec:
        return false_because("InvalidSpec", context.refused_spec)
    texts = [context.changed_by_others]
    if rayjob := observed.rayjob(attempt):
        kept = (
            f"RayJob {rayjob.name} would stay when the job is deleted: a webhook or policy removes its ownerReferences"
        )
        texts += [rayjob.altered, kept if rayjob.orphaned else ""]
    others = "; ".join(filter(None, texts)) if isinstance(situation, Active) else ""
    if isinstance(situation, Creating):
        facts = replace(facts, outdated=False)
    return review_update(facts, observed, attempt, others)


def derive_invalid_status(facts: JobFacts, observed: Observation, previous: Status, text: str, now: datetime) -> Status:
    """Status of a job with an invalid spec.

    While an attempt runs, only `Updated` changes, because the attempt continues. A suspended job stays suspended.
    """
    if previous.finished:
        return with_state(previous.model_copy(update={"observed_generation": facts.generation}))
    table = refuse_spec(text)
    suspended = previous.condition("Suspended")
    if suspended and suspended.status != "False":
        # The operator deleted the attempt. Without this record, it would count as deleted by someone else.
        table = {**table, "Suspended": value_of(suspended)}
    if observed.rayjobs and previous.conditions:
        table = {**_keep(previous, table), "Updated": table["Updated"]}
    conditions = update_conditions(previous, table, facts.generation, now)
    return with_state(previous.model_copy(update={"observed_generation": facts.generation, "conditions": conditions}))
