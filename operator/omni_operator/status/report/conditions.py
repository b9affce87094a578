"""PURE: conditions of a job, derived from its situation; every pass derives all of them."""

from __future__ import annotations

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
from omni_operator.status.decisions.queue_requests import describe_admission, describe_request
from omni_operator.status.decisions.rolling import review_rolling
from omni_operator.status.decisions.scaling import review_scaling
from omni_operator.status.decisions.situation import (
    BetweenAttempts,
    Creating,
    Failing,
    Suspended,
    Suspending,
    Unfinished,
)
from omni_operator.status.decisions.snapshot import Snapshot
from omni_operator.status.decisions.verdict import InProgress, Stage, Succeeded
from omni_operator.status.observed.evidence import without_control
from omni_operator.status.observed.job_facts import JobFacts
from omni_operator.status.observed.observation import Attempt, Refusal
from omni_operator.status.observed.timestamps import format_timestamp, parse_timestamp
from omni_operator.status.reasons.names import CHANGED_BY_OTHERS, NEXT_ATTEMPT

MESSAGE_LIMIT = 1024  # characters of the message of a condition
NOT_FAILED = false_because("NoFailure")
NOT_RUNNING = unknown_because("NotRunning")


def derive_conditions(job: Snapshot, situation: Unfinished, refusal: Refusal | None, others: str) -> Table:
    """All conditions of a job with a valid spec that has not ended.

    Args:
        job: its facts come from `as_running`.
        refusal: the API server's answer, if it refused a step of this pass.
        others: what other programs change again after each correction.
    """
    table = {
        **_review_situation(job, situation, false_because(refusal.kind, refusal.text) if refusal else None),
        "Updated": _review_update(job, situation, others),
        **_review_spec(job.facts),
        **review_scaling(job.facts, job.attempt, job.now),
        "OutputSent": _review_output(job),
    }
    return table if job.facts.complete else {**table, **keep_conditions(job.status, UNREAD)}


def _review_situation(job: Snapshot, situation: Unfinished, refused: ConditionValue | None) -> Table:
    match situation:
        case Creating(attempt=attempt):
            creating = unknown_because("AttemptCreated", f"attempt {attempt}")
            if refused:
                return _table(refused, refused, unknown_because(refused.reason))
            return _table(creating, false_because("Starting"), creating)
        case InProgress():
            return _review_attempt(job, situation, refused)
        case BetweenAttempts(text=text):
            between = unknown_because("BetweenAttempts", text)
            return _table(between, refused or false_because("BetweenAttempts", text), between)
        case Suspending(reason=reason, text=text):
            stopping = false_because("Suspending", text)
            suspended = unknown_because(reason, text)
            return _table(stopping, refused or stopping, unknown_because("Suspending"), Suspended=suspended)
        case Suspended():
            return _table(
                false_because("Suspended", "spec.suspend is true"),
                true_because("Suspended", "spec.suspend is true"),
                unknown_because("Suspended"),
                Suspended=true_because("Suspended", "the job has no pods"),
            )
        case Succeeded():
            succeeded = true_because("AttemptSucceeded", f"attempt {job.attempt.number}")
            return _table(false_because("Finished"), true_because("Finished"), succeeded)
        case Failing(reason=reason, text=text, why=why):
            message = f"attempt {job.attempt.number}: {text}"
            if not why:
                over = false_because(reason, message)
                return _table(over, over, unknown_because("BetweenAttempts", message))
            over = false_because(reason, f"{message}; {why}")
            failed = true_because(over.reason, over.message)
            return _table(over, over, over, Failed=failed, Stalled=failed)


def _table(
    admitted: ConditionValue, ready: ConditionValue, succeeded: ConditionValue, **others: ConditionValue
) -> Table:
    return {
        "Admitted": admitted,
        "Ready": ready,
        "WeightsInSync": NOT_RUNNING,
        "ProgressStalled": NOT_RUNNING,
        "Suspended": false_because("NotRequested"),
        "Succeeded": succeeded,
        "Failed": NOT_FAILED,
        # kstatus reads `Ready` and `Stalled`: True if nothing happens before a user acts.
        "Stalled": NOT_FAILED,
        **others,
    }


UNREAD: Table = dict.fromkeys(
    ("ResultsKept", "OutputSent", "AcceleratorChosen", "RolloutsScaled", "RewardsScaled"),
    unknown_because("InvalidSpec"),
)


def refuse_spec(text: str) -> Table:
    """All conditions of a job without an attempt whose spec is invalid."""
    refused = false_because("InvalidSpec", text)
    hopeless = true_because("InvalidSpec", text)
    return {**_table(refused, refused, unknown_because("InvalidSpec"), Updated=refused, Stalled=hopeless), **UNREAD}


def keep_conditions(status: Status, table: Table) -> Table:
    """Conditions as they were written last, or as in `table` where there were none."""
    written = {kind: status.condition(kind) for kind in table}
    return {kind: value_of(old) if (old := written[kind]) else value for kind, value in table.items()}


def _review_spec(facts: JobFacts) -> Table:
    """Conditions that warn of a spec before any pod runs."""
    results = false_because("ResultsOnEmptyDir", f"spec.checkpoint.claimName {RESULTS_LOST}")
    if facts.sends_output:
        results = true_because("OutputGiven", "checkpoints to resume from are deleted with the pods")
    vendor = false_because("NoVendor", f"spec.trainer.accelerator.vendor {NO_VENDOR}")
    return {
        "ResultsKept": true_because("VolumeMounted") if facts.keeps_results else results,
        "AcceleratorChosen": true_because(facts.vendor) if facts.vendor else vendor,
    }


def _review_output(job: Snapshot) -> ConditionValue:
    """The condition `OutputSent`; without a report of this attempt it stays as it was."""
    report = job.attempt.report
    before = job.status.condition("OutputSent")
    if not job.facts.sends_output:
        return unknown_because("NoOutput", "spec.output is not given")
    if report is not None and report.output_failed:
        return false_because("OutputNotSent", report.output_failed)
    if report is not None and report.output:
        return true_because("Sent", report.output)
    if before is not None and before.reason in ("Sent", "OutputNotSent"):
        return value_of(before)
    return unknown_because("NothingSent")


def _review_update(job: Snapshot, situation: Unfinished, others: str) -> ConditionValue:
    """Whether the attempt is as the current spec asks; where pods are replaced while it runs, whether all are."""
    if job.refused_spec:
        return false_because("InvalidSpec", job.refused_spec)
    text = "the spec changed; the running attempt keeps the old spec, the next one gets the new"
    compared = false_because(NEXT_ATTEMPT, text)
    if not (job.facts.held or (job.facts.outdated and not isinstance(situation, Creating))):
        compared = review_rolling(job.facts, job.attempt) or true_because("AsRequested")
    if not isinstance(situation, InProgress):
        return compared
    texts = [others]
    if rayjob := job.attempt.rayjob:
        kept = (
            f"RayJob {rayjob.name} would stay when the job is deleted: a webhook or policy removes its ownerReferences"
        )
        texts += [rayjob.altered, kept if rayjob.orphaned else ""]
    if not any(texts):
        return compared
    return false_because(CHANGED_BY_OTHERS, "; ".join(filter(None, (*texts, compared.message))))


def review_end(job: Snapshot, refusal: Refusal | None) -> Table:
    """Conditions of a job that has ended: `Ready` names a refused step, as the deletion of the job, while it lasts."""
    if refusal:
        return {"Ready": false_because(refusal.kind, refusal.text)}
    failed = job.status.condition("Failed")
    if failed is None or failed.status != "True":
        return {"Ready": true_because("Finished"), "Stalled": NOT_FAILED}
    end = failed.reason, failed.message
    return {"Ready": false_because(*end), "Stalled": true_because(*end)}


def _review_attempt(job: Snapshot, going: InProgress, refused: ConditionValue | None) -> Table:
    size = job.attempt.size(ROLLOUT_GROUP)
    if going.stage is Stage.QUEUED:
        text = "the queue has not admitted the RayJob (its spec.suspend is true)"
        asks = describe_request(size)
        text += f", which {asks}" if asks else ""
        text += f". Kueue says {going.problem}" if going.problem else ""
        queued = false_because("Queued", text)
        return _table(queued, refused or false_because("Queued"), unknown_because("Queued"))
    fewer = describe_admission(size)
    admitted = true_because("PartiallyAdmitted", fewer) if fewer else true_because("ChildUnsuspended")
    problem = false_because(going.problem_reason, going.problem) if going.problem_reason else refused
    if going.stage is Stage.STARTING:
        starting = false_because("Starting", f"attempt {job.attempt.number}")
        return _table(admitted, problem or starting, unknown_because("Starting"))
    report = job.attempt.report
    return _table(
        admitted,
        problem or _review_pods(job.facts, job.attempt),
        unknown_because("Running", (report.phase if report else None) or ""),
        WeightsInSync=_review_weights(job),
        ProgressStalled=_review_heartbeat(job),
    )


def _review_pods(facts: JobFacts, attempt: Attempt) -> ConditionValue:
    """Whether all pods serve that the trainer needs. Other pods than its own come and go."""
    if attempt.cluster is None:
        return false_because("PodsNotReady", "KubeRay has not created the RayCluster yet")
    head = f"head {'ready' if attempt.head_ready else 'not ready'}"
    if not (facts.rollouts.pods or facts.judges.pods or facts.scorers):
        desired = attempt.cluster.desired_workers
        if attempt.head_ready and attempt.ready_workers >= desired:
            return true_because("TrainerAndRolloutsServing")
        return false_because("PodsNotReady", f"{head}, workers {attempt.ready_workers}/{desired}")
    ready = attempt.ready_pods(ROLLOUT_GROUP)
    rollouts = f"rollout pods {ready}/{facts.rollouts.pods}"
    trainers = attempt.ready_pods(TRAINER_GROUP)
    judges = attempt.ready_pods(REWARD_GROUP)
    rewards = f"reward pods {judges}/{facts.judges.pods}"
    scorers = {pool: attempt.ready_pods(pool.group) for pool in facts.scorers}
    needed = attempt.head_ready and trainers >= facts.trainer.pods and 0 not in scorers.values()
    if not needed or (facts.judges.pods and not judges):
        text = f"{head}, trainer pods {trainers}/{facts.trainer.pods}"
        text += f", {rollouts}" if facts.rollouts.pods else ""
        text += f", {rewards}" if facts.judges.pods else ""
        text += "".join(f", {pool.group} pods {count}/{pool.pods}" for pool, count in scorers.items())
        return false_because("PodsNotReady", text)
    if ready < facts.least_rollout_pods:
        least = f"spec.rollout.minReplicas is {facts.least_rollout_pods}"
        return false_because("TooFewRollouts", f"{rollouts}: the trainer waits, {least}")
    if ready < facts.rollouts.pods:
        return true_because("RolloutsMissing", f"{rollouts}: KubeRay starts the others")
    if judges < facts.judges.pods:
        return true_because("JudgesMissing", f"{rewards}: KubeRay starts the others")
    return true_because("TrainerAndRolloutsServing")


def _review_weights(job: Snapshot) -> ConditionValue:
    report = job.attempt.report
    before = job.status.condition("WeightsInSync")
    if report is None and job.heartbeat and before:
        # An earlier process received the last report: its result stays until the next report.
        return value_of(before)
    if report is None or report.version is None:
        return unknown_because("NoReports", "the trainer has not reported a weight version")
    if report.min_version is None:
        text = f"the trainer is at version {report.version}; no engine has reported its version"
        return unknown_because("ReplicasUnknown", text)
    if report.version - report.min_version > job.facts.max_lag:
        text = f"an engine is at version {report.min_version}, the trainer at {report.version}"
        return false_because("ReplicaBehind", text)
    if report.synced_at and job.weights_expire_at and job.now >= job.weights_expire_at:
        return false_because("WeightsOld", f"the last weight sync was at {format_timestamp(report.synced_at)}")
    return true_because("InSync")


def _review_heartbeat(job: Snapshot) -> ConditionValue:
    if job.heartbeat is None or job.stalls_at is None:
        return unknown_because("NoReports", "the trainer has not reported")
    if job.now >= job.stalls_at:
        return true_because("HeartbeatStopped", f"the trainer last reported at {format_timestamp(job.heartbeat)}")
    return false_because("StepAdvancing")


def update_conditions(job: Snapshot, table: Table) -> tuple[Condition, ...]:
    """Conditions with times; lastTransitionTime changes only when the status changes. Others than in `table` stay."""
    conditions = []
    for kind in CONDITION_TYPES:
        new = table.get(kind)
        old = job.status.condition(kind)
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
                observed_generation=job.facts.generation,
                last_transition_time=format_timestamp(job.now) if flipped or old is None else old.last_transition_time,
            )
        )
    return tuple(conditions)
