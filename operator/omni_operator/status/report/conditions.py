"""PURE: conditions of a job, derived from its situation; every pass derives all of them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from omni_operator.api.job import NO_VENDOR, RESULTS_LOST
from omni_operator.api.names import REWARD_GROUP, ROLLOUT_GROUP, TRAINER_GROUP
from omni_operator.api.status import CONDITION_TYPES, Condition, Status
from omni_operator.status.condition_value import (
    ConditionValue,
    Table,
    false_because,
    true_because,
    unknown_because,
    value_of,
)
from omni_operator.status.decisions.partial_admission import describe_admission, describe_request
from omni_operator.status.decisions.situation import (
    Active,
    BetweenAttempts,
    Creating,
    Failing,
    Succeeding,
    Suspended,
    Suspending,
    Unfinished,
)
from omni_operator.status.decisions.verdict import InProgress, Stage
from omni_operator.status.observed.evidence import without_control
from omni_operator.status.observed.job_facts import JobFacts
from omni_operator.status.observed.observation import Observation, ObservedRayCluster, Refusal, TrainerReport
from omni_operator.status.observed.timestamps import format_timestamp, parse_timestamp

MESSAGE_LIMIT = 1024  # characters of the message of a condition


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Last report of the running attempt's trainer, and the limits that apply to it.

    Attributes:
        at: time of the report, or of the trainer's start if a queue has let the attempt start again since; None if
            there is no report in this attempt.
        silence: time without a report after which the job counts as stalled.
        max_lag: versions that an engine may be behind the trainer.
        max_age: time since the last weight sync after which weights are too old.
        started: start of the trainer.
    """

    at: datetime | None
    silence: timedelta
    max_lag: int = 1
    max_age: timedelta = timedelta.max
    started: datetime | None = None

    def synced(self, at: datetime) -> datetime:
        """Since when the weights have aged, of which a sync was reported."""
        return max(at, self.started) if self.started else at


def derive_conditions(
    situation: Unfinished,
    facts: JobFacts,
    observed: Observation,
    refusal: Refusal | None,
    updated: ConditionValue,
    heartbeat: Heartbeat,
    now: datetime,
) -> Table:
    """All conditions of a job with a valid spec that has not ended."""
    match situation:
        case Creating(attempt=attempt):
            if refused := _refused(refusal):
                return _table(refused, refused, unknown_because(refused.reason), updated=updated)
            creating = unknown_because("AttemptCreated", f"attempt {attempt}")
            return _table(creating, false_because("Starting"), creating, updated=updated)
        case Active(attempt=attempt, going=going):
            return _active(attempt, going, facts, observed, refusal, updated, heartbeat, now)
        case BetweenAttempts(text=text):
            between = unknown_because("BetweenAttempts", text)
            ready = _refused(refusal) or false_because("BetweenAttempts", text)
            return _table(between, ready, between, updated=updated)
        case Suspending(reason=reason, text=text):
            stopping = false_because("Suspending", text)
            return _table(
                stopping,
                _refused(refusal) or stopping,
                unknown_because("Suspending"),
                unknown_because(reason, text),
                updated,
            )
        case Suspended():
            text = "spec.suspend is true"
            return _table(
                false_because("Suspended", text),
                true_because("Suspended", text),
                unknown_because("Suspended"),
                true_because("Suspended", "the job has no pods"),
                updated,
            )
        case Succeeding(attempt=attempt):
            succeeded = true_because("AttemptSucceeded", f"attempt {attempt}")
            return _table(false_because("Finished"), true_because("Finished"), succeeded, updated=updated)
        case Failing(attempt=attempt, reason=reason, text=text, final=final, why=why):
            message = f"attempt {attempt}: {text}"
            if not final:
                over = false_because(reason, message)
                return _table(over, over, unknown_because("BetweenAttempts", message), updated=updated)
            end = reason, f"{message}; {why}"
            over = false_because(*end)
            return _table(over, over, over, updated=updated, failed=true_because(*end))


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
    # kstatus reads `Ready` and `Stalled`: True if nothing happens before a user acts.
    hopeless = true_because(admitted.reason, admitted.message) if admitted.reason == "InvalidSpec" else failed
    return {
        "Admitted": admitted,
        "Ready": ready,
        "WeightsInSync": weights,
        "Updated": updated,
        "ProgressStalled": stalled,
        "Suspended": suspended,
        "Succeeded": succeeded,
        "Failed": failed,
        "Stalled": hopeless,
    }


def refuse_spec(text: str) -> Table:
    """All conditions of a job without an attempt whose spec is invalid."""
    refused = false_because("InvalidSpec", text)
    return {**_table(refused, refused, unknown_because("InvalidSpec"), updated=refused), **review_spec(None)}


def review_spec(facts: JobFacts | None) -> Table:
    """Conditions that warn of a spec before any pod runs; `facts` is None for an invalid spec."""
    if facts is None:
        unread = unknown_because("InvalidSpec")
        return dict.fromkeys(
            ("ResultsKept", "OutputSent", "AcceleratorChosen", "RolloutsScaled", "RewardsScaled"), unread
        )
    results = false_because("ResultsOnEmptyDir", f"spec.checkpoint.claimName {RESULTS_LOST}")
    if facts.sends_output:
        results = true_because("OutputGiven", "checkpoints to resume from are deleted with the pods")
    vendor = false_because("NoVendor", f"spec.trainer.accelerator.vendor {NO_VENDOR}")
    return {
        "ResultsKept": true_because("VolumeMounted") if facts.keeps_results else results,
        "AcceleratorChosen": true_because(facts.vendor) if facts.vendor else vendor,
    }


def review_output(facts: JobFacts, report: TrainerReport | None, before: Condition | None) -> ConditionValue:
    """The condition `OutputSent`; without a report of this attempt it stays as it was."""
    if not facts.sends_output:
        return unknown_because("NoOutput", "spec.output is not given")
    if report is not None and report.output_failed:
        return false_because("OutputNotSent", report.output_failed)
    if report is not None and report.output:
        return true_because("Sent", report.output)
    if before is not None and before.reason in ("Sent", "OutputNotSent"):
        return value_of(before)
    return unknown_because("NothingSent")


def show_refusal(previous: Status, refusal: Refusal, generation: int, now: datetime) -> tuple[Condition, ...]:
    """The conditions of a status with `Ready`, which names a refusal, and all others as they were."""
    return update_conditions(previous, {"Ready": false_because(refusal.kind, refusal.text)}, generation, now)


def review_end(previous: Status, refusal: Refusal | None, generation: int, now: datetime) -> tuple[Condition, ...]:
    """Conditions of a job that has ended: `Ready` names a refused step, as the deletion of the job, while it lasts."""
    if refusal:
        return show_refusal(previous, refusal, generation, now)
    table = {"Ready": true_because("Finished"), "Stalled": NOT_FAILED}
    if (failed := previous.condition("Failed")) and failed.status == "True":
        end = failed.reason, failed.message
        table = {"Ready": false_because(*end), "Stalled": true_because(*end)}
    return update_conditions(previous, table, generation, now)


def _refused(refusal: Refusal | None) -> ConditionValue | None:
    return false_because(refusal.kind, refusal.text) if refusal else None


def _active(
    attempt: int,
    going: InProgress,
    facts: JobFacts,
    observed: Observation,
    refusal: Refusal | None,
    updated: ConditionValue,
    heartbeat: Heartbeat,
    now: datetime,
) -> Table:
    if going.stage is Stage.QUEUED:
        text = "the queue has not admitted the RayJob (its spec.suspend is true)"
        asks = describe_request(observed, attempt)
        text += f", which {asks}" if asks else ""
        text += f". Kueue says {going.problem}" if going.problem else ""
        queued = false_because("Queued", text)
        ready = _refused(refusal) or false_because("Queued")
        return _table(queued, ready, unknown_because("Queued"), updated=updated)
    fewer = describe_admission(observed, attempt)
    admitted = true_because("PartiallyAdmitted", fewer) if fewer else true_because("ChildUnsuspended")
    problem = false_because(going.problem_reason, going.problem) if going.problem_reason else None
    problem = problem or _refused(refusal)
    if going.stage is Stage.STARTING:
        starting = false_because("Starting", f"attempt {attempt}")
        return _table(admitted, problem or starting, unknown_because("Starting"), updated=updated)
    report = observed.report_of(attempt)
    return _table(
        admitted,
        problem or _serving(facts, observed, attempt),
        unknown_because("Running", (report.phase if report else None) or ""),
        updated=updated,
        weights=_weights(report, heartbeat, now),
        stalled=_stalled(heartbeat, now),
    )


def _serving(facts: JobFacts, observed: Observation, attempt: int) -> ConditionValue:
    cluster = observed.cluster(attempt)
    if cluster is None:
        return false_because("PodsNotReady", "KubeRay has not created the RayCluster yet")
    if facts.rollouts.pods or facts.judges.pods or facts.scorers:
        return _serving_apart(facts, observed, cluster)
    ready = observed.ready_workers(attempt)
    desired = cluster.desired_workers
    head_ready = observed.head_ready(attempt)
    if head_ready and ready >= desired:
        return true_because("TrainerAndRolloutsServing")
    head = "ready" if head_ready else "not ready"
    return false_because("PodsNotReady", f"head {head}, workers {ready}/{desired}")


def _serving_apart(facts: JobFacts, observed: Observation, cluster: ObservedRayCluster) -> ConditionValue:
    """Other pods than the trainer's come and go: the job is ready as long as the trainer need not wait for them."""
    attempt = cluster.attempt
    ready = observed.ready_pods(cluster.attempt, ROLLOUT_GROUP)
    desired = facts.rollouts.pods
    trainers = observed.ready_pods(attempt, TRAINER_GROUP)
    all_trainers = facts.trainer.pods
    judges = observed.ready_pods(attempt, REWARD_GROUP)
    all_judges = facts.judges.pods
    scorers = {pool: observed.ready_pods(attempt, pool.group) for pool in facts.scorers}
    head_ready = observed.head_ready(attempt)
    if not head_ready or trainers < all_trainers or (all_judges and not judges) or 0 in scorers.values():
        head = "ready" if head_ready else "not ready"
        text = f"head {head}, trainer pods {trainers}/{all_trainers}"
        text += f", rollout pods {ready}/{desired}" if desired else ""
        text += f", reward pods {judges}/{all_judges}" if all_judges else ""
        text += "".join(f", {pool.group} pods {count}/{pool.pods}" for pool, count in scorers.items())
        return false_because("PodsNotReady", text)
    if ready < facts.least_rollout_pods:
        least = f"spec.rollout.minReplicas is {facts.least_rollout_pods}"
        return false_because("TooFewRollouts", f"rollout pods {ready}/{desired}: the trainer waits, {least}")
    if ready < desired:
        return true_because("RolloutsMissing", f"rollout pods {ready}/{desired}: KubeRay starts the others")
    if judges < all_judges:
        return true_because("JudgesMissing", f"reward pods {judges}/{all_judges}: KubeRay starts the others")
    return true_because("TrainerAndRolloutsServing")


def _weights(report: TrainerReport | None, heartbeat: Heartbeat, now: datetime) -> ConditionValue:
    if report is None or report.version is None:
        return unknown_because("NoReports", "the trainer has not reported a weight version")
    if report.min_version is None:
        text = f"the trainer is at version {report.version}; no engine has reported its version"
        return unknown_because("ReplicasUnknown", text)
    lag = report.version - report.min_version
    if lag > heartbeat.max_lag:
        text = f"an engine is at version {report.min_version}, the trainer at {report.version}"
        return false_because("ReplicaBehind", text)
    if report.synced_at and now - heartbeat.synced(report.synced_at) >= heartbeat.max_age:
        return false_because("WeightsOld", f"the last weight sync was at {format_timestamp(report.synced_at)}")
    return true_because("InSync")


def _stalled(heartbeat: Heartbeat, now: datetime) -> ConditionValue:
    if heartbeat.at is None:
        return unknown_because("NoReports", "the trainer has not reported")
    if now >= heartbeat.at + heartbeat.silence:
        return true_because("HeartbeatStopped", f"the trainer last reported at {format_timestamp(heartbeat.at)}")
    return false_because("StepAdvancing")


def update_conditions(previous: Status, table: Table, generation: int, now: datetime) -> tuple[Condition, ...]:
    """Conditions with times; lastTransitionTime changes only when the status changes. Others than in `table` stay."""
    conditions = []
    for kind in CONDITION_TYPES:
        new = table.get(kind)
        old = previous.condition(kind)
        if new is None:
            conditions.extend([old] if old else [])
            continue
        flipped = old is None or old.status != new.status or parse_timestamp(old.last_transition_time) is None
        conditions.append(
            Condition(
                type=kind,
                status=new.status,
                reason=new.reason,
                message=without_control(new.message[:MESSAGE_LIMIT]),
                observed_generation=generation,
                last_transition_time=format_timestamp(now) if flipped or old is None else old.last_transition_time,
            )
        )
    return tuple(conditions)
