"""PURE: conditions of a job, derived from its situation; every pass derives all of them."""

from omni_operator.api.job import NO_VENDOR, RESULTS_LOST
from omni_operator.api.names import REWARD_GROUP, ROLLOUT_GROUP, TRAINER_GROUP
from omni_operator.api.status import CONDITION_TYPES, Condition, Status
from omni_operator.status.condition_value import (
    CHANGED_BY_OTHERS,
    NEXT_ATTEMPT,
    ConditionValue,
    Table,
    value_of,
)
from omni_operator.status.decisions.queue_requests import describe_admission, describe_request
from omni_operator.status.decisions.rolling import review_rolling
from omni_operator.status.decisions.scaling import review_scaling
from omni_operator.status.decisions.situation import (
    BetweenAttempts,
    Creating,
    Failing,
    Finished,
    Situation,
    SpecRefused,
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

MESSAGE_LIMIT = 1024  # characters of the message of a condition
NOT_FAILED = ConditionValue("False", "NoFailure")
NOT_RUNNING = ConditionValue("Unknown", "NotRunning")


def derive_conditions(job: Snapshot, situation: Situation, refusal: Refusal | None) -> tuple[Condition, ...]:
    """All conditions of a job.

    Args:
        job: its facts come from `as_running`.
        refusal: the API server's answer, if it refused a step of this pass.
    """
    refused = ConditionValue("False", refusal.kind, refusal.text) if refusal else None
    match situation:
        case SpecRefused(text=text):
            return update_conditions(job, {} if job.status.finished else _refuse_spec(job, text))
        case Finished():
            return update_conditions(job, {"Ready": refused} if refused else _review_end(job.status))
        case _:
            table = {
                **_review_situation(job, situation, refused),
                "Updated": _review_update(job, situation),
                **review_scaling(job.facts, job.attempt, job.now),
                **_review_spec(job.facts),
                "OutputSent": _review_output(job),
            }
    return update_conditions(job, table if job.facts.complete else {**table, **_keep(job.status, UNREAD)})


def _review_situation(job: Snapshot, situation: Unfinished, refused: ConditionValue | None) -> Table:
    match situation:
        case Creating(attempt=attempt):
            creating = ConditionValue("Unknown", "AttemptCreated", f"attempt {attempt}")
            if refused:
                return _table(refused, refused, ConditionValue("Unknown", refused.reason))
            return _table(creating, ConditionValue("False", "Starting"), creating)
        case InProgress():
            return _review_attempt(job, situation, refused)
        case BetweenAttempts(text=text):
            between = ConditionValue("Unknown", "BetweenAttempts", text)
            return _table(between, refused or ConditionValue("False", "BetweenAttempts", text), between)
        case Suspending(reason=reason, text=text):
            stopping = ConditionValue("False", "Suspending", text)
            suspended = ConditionValue("Unknown", reason, text)
            return _table(stopping, refused or stopping, ConditionValue("Unknown", "Suspending"), Suspended=suspended)
        case Suspended():
            return _table(
                ConditionValue("False", "Suspended", "spec.suspend is true"),
                ConditionValue("True", "Suspended", "spec.suspend is true"),
                ConditionValue("Unknown", "Suspended"),
                Suspended=ConditionValue("True", "Suspended", "the job has no pods"),
            )
        case Succeeded():
            succeeded = ConditionValue("True", "AttemptSucceeded", f"attempt {job.attempt.number}")
            return _table(ConditionValue("False", "Finished"), ConditionValue("True", "Finished"), succeeded)
        case Failing(reason=reason, text=text, why=why):
            message = f"attempt {job.attempt.number}: {text}"
            if not why:
                over = ConditionValue("False", reason, message)
                return _table(over, over, ConditionValue("Unknown", "BetweenAttempts", message))
            over = ConditionValue("False", reason, f"{message}; {why}")
            failed = ConditionValue("True", over.reason, over.message)
            return _table(over, over, over, Failed=failed, Stalled=failed)


def _table(
    admitted: ConditionValue, ready: ConditionValue, succeeded: ConditionValue, **others: ConditionValue
) -> Table:
    return {
        "Admitted": admitted,
        "Ready": ready,
        "WeightsInSync": NOT_RUNNING,
        "ProgressStalled": NOT_RUNNING,
        "Suspended": ConditionValue("False", "NotRequested"),
        "Succeeded": succeeded,
        "Failed": NOT_FAILED,
        # kstatus reads `Ready` and `Stalled`: True if nothing happens before a user acts.
        "Stalled": NOT_FAILED,
        **others,
    }


UNREAD: Table = dict.fromkeys(
    ("ResultsKept", "OutputSent", "AcceleratorChosen", "RolloutsScaled", "RewardsScaled"),
    ConditionValue("Unknown", "InvalidSpec"),
)


def _refuse_spec(job: Snapshot, text: str) -> Table:
    """The conditions of a job whose spec is refused.

    While an attempt runs, only `Updated` changes, because the attempt continues. A suspended job stays suspended.
    """
    refused = ConditionValue("False", "InvalidSpec", text)
    hopeless = ConditionValue("True", "InvalidSpec", text)
    unknown = ConditionValue("Unknown", "InvalidSpec")
    table = {**_table(refused, refused, unknown, Updated=refused, Stalled=hopeless), **UNREAD}
    suspended = job.status.condition("Suspended")
    if suspended and suspended.status != "False":
        # The operator deleted the attempt. Without this record, it would count as deleted by someone else.
        table["Suspended"] = value_of(suspended)
    if job.observed.rayjobs and job.status.conditions:
        return {**_keep(job.status, table), "Updated": refused}
    return table


def _keep(status: Status, table: Table) -> Table:
    """Conditions as they were written last, or as in `table` where there were none."""
    written = {kind: status.condition(kind) for kind in table}
    return {kind: value_of(old) if (old := written[kind]) else value for kind, value in table.items()}


def _review_spec(facts: JobFacts) -> Table:
    """Conditions that warn of a spec before any pod runs."""
    results = ConditionValue("False", "ResultsOnEmptyDir", f"spec.checkpoint.claimName {RESULTS_LOST}")
    if facts.sends_output:
        results = ConditionValue("True", "OutputGiven", "checkpoints to resume from are deleted with the pods")
    vendor = ConditionValue("False", "NoVendor", f"spec.trainer.accelerator.vendor {NO_VENDOR}")
    return {
        "ResultsKept": ConditionValue("True", "VolumeMounted") if facts.keeps_results else results,
        "AcceleratorChosen": ConditionValue("True", facts.vendor) if facts.vendor else vendor,
    }


def _review_output(job: Snapshot) -> ConditionValue:
    """The condition `OutputSent`; without a report of this attempt it stays as it was."""
    report = job.attempt.report
    before = job.status.condition("OutputSent")
    if not job.facts.sends_output:
        return ConditionValue("Unknown", "NoOutput", "spec.output is not given")
    if report is not None and report.output_failed:
        return ConditionValue("False", "OutputNotSent", report.output_failed)
    if report is not None and report.output:
        return ConditionValue("True", "Sent", report.output)
    if before is not None and before.reason in ("Sent", "OutputNotSent"):
        return value_of(before)
    return ConditionValue("Unknown", "NothingSent")


def _review_update(job: Snapshot, situation: Unfinished) -> ConditionValue:
    """Whether the attempt is as the current spec asks; where pods are replaced while it runs, whether all are."""
    if job.refused_spec:
        return ConditionValue("False", "InvalidSpec", job.refused_spec)
    text = "the spec changed; the running attempt keeps the old spec, the next one gets the new"
    compared = ConditionValue("False", NEXT_ATTEMPT, text)
    if not (job.facts.held or (job.facts.outdated and not isinstance(situation, Creating))):
        compared = review_rolling(job.facts, job.attempt) or ConditionValue("True", "AsRequested")
    if not isinstance(situation, InProgress):
        return compared
    texts = [job.changed_by_others]
    if rayjob := job.attempt.rayjob:
        kept = (
            f"RayJob {rayjob.name} would stay when the job is deleted: a webhook or policy removes its ownerReferences"
        )
        texts += [rayjob.altered, kept if rayjob.orphaned else ""]
    if not any(texts):
        return compared
    return ConditionValue("False", CHANGED_BY_OTHERS, "; ".join(filter(None, (*texts, compared.message))))


def _review_end(status: Status) -> Table:
    """Conditions of a job that has ended; while a step is refused, as the deletion of the job, `Ready` names it."""
    failed = status.condition("Failed")
    if failed is None or failed.status != "True":
        return {"Ready": ConditionValue("True", "Finished"), "Stalled": NOT_FAILED}
    end = failed.reason, failed.message
    return {"Ready": ConditionValue("False", *end), "Stalled": ConditionValue("True", *end)}


def _review_attempt(job: Snapshot, going: InProgress, refused: ConditionValue | None) -> Table:
    size = job.attempt.sizes.get(ROLLOUT_GROUP)
    if going.stage is Stage.QUEUED:
        text = "the queue has not admitted the RayJob (its spec.suspend is true)"
        asks = describe_request(size)
        text += f", which {asks}" if asks else ""
        text += f". {going.problem}" if going.problem else ""
        queued = ConditionValue("False", "Queued", text)
        return _table(queued, refused or ConditionValue("False", "Queued"), ConditionValue("Unknown", "Queued"))
    fewer = describe_admission(size)
    admitted = (
        ConditionValue("True", "PartiallyAdmitted", fewer) if fewer else ConditionValue("True", "ChildUnsuspended")
    )
    problem = ConditionValue("False", going.problem_reason, going.problem) if going.problem_reason else refused
    if going.stage is Stage.STARTING:
        starting = ConditionValue("False", "Starting", f"attempt {job.attempt.number}")
        return _table(admitted, problem or starting, ConditionValue("Unknown", "Starting"))
    report = job.attempt.report
    return _table(
        admitted,
        problem or _review_pods(job.facts, job.attempt),
        ConditionValue("Unknown", "Running", (report.phase if report else None) or ""),
        WeightsInSync=_review_weights(job),
        ProgressStalled=_review_heartbeat(job),
    )


def _review_pods(facts: JobFacts, attempt: Attempt) -> ConditionValue:
    """Whether all pods serve that the trainer needs. Other pods than its own come and go."""
    if attempt.cluster is None:
        return ConditionValue("False", "PodsNotReady", "KubeRay has not created the RayCluster yet")
    head = f"head {'ready' if attempt.head_ready else 'not ready'}"
    if not (facts.rollouts.pods or facts.judges.pods or facts.scorers):
        desired = attempt.cluster.desired_workers
        if attempt.head_ready and attempt.ready_workers >= desired:
            return ConditionValue("True", "TrainerAndRolloutsServing")
        return ConditionValue("False", "PodsNotReady", f"{head}, workers {attempt.ready_workers}/{desired}")
    ready = attempt.ready[ROLLOUT_GROUP]
    rollouts = f"rollout pods {ready}/{facts.rollouts.pods}"
    trainers = attempt.ready[TRAINER_GROUP]
    judges = attempt.ready[REWARD_GROUP]
    rewards = f"reward pods {judges}/{facts.judges.pods}"
    scorers = {pool: attempt.ready[pool.group] for pool in facts.scorers}
    needed = attempt.head_ready and trainers >= facts.trainer.pods and 0 not in scorers.values()
    if not needed or (facts.judges.pods and not judges):
        text = f"{head}, trainer pods {trainers}/{facts.trainer.pods}"
        text += f", {rollouts}" if facts.rollouts.pods else ""
        text += f", {rewards}" if facts.judges.pods else ""
        text += "".join(f", {pool.group} pods {count}/{pool.pods}" for pool, count in scorers.items())
        return ConditionValue("False", "PodsNotReady", text)
    if ready < facts.least_rollout_pods:
        least = f"spec.rollout.minReplicas is {facts.least_rollout_pods}"
        return ConditionValue("False", "TooFewRollouts", f"{rollouts}: the trainer waits, {least}")
    if ready < facts.rollouts.pods:
        return ConditionValue("True", "RolloutsMissing", f"{rollouts}: KubeRay starts the others")
    if judges < facts.judges.pods:
        return ConditionValue("True", "JudgesMissing", f"{rewards}: KubeRay starts the others")
    return ConditionValue("True", "TrainerAndRolloutsServing")


def _review_weights(job: Snapshot) -> ConditionValue:
    report = job.attempt.report
    before = job.status.condition("WeightsInSync")
    if report is None and job.heartbeat and before:
        # An earlier process received the last report: its result stays until the next report.
        return value_of(before)
    if report is None or report.version is None:
        return ConditionValue("Unknown", "NoReports", "the trainer has not reported a weight version")
    if report.min_version is None:
        text = f"the trainer is at version {report.version}; no engine has reported its version"
        return ConditionValue("Unknown", "ReplicasUnknown", text)
    if report.version - report.min_version > job.facts.max_lag:
        text = f"an engine is at version {report.min_version}, the trainer at {report.version}"
        return ConditionValue("False", "ReplicaBehind", text)
    if report.synced_at and job.weights_expire_at and job.now >= job.weights_expire_at:
        return ConditionValue(
            "False", "WeightsOld", f"the last weight sync was at {format_timestamp(report.synced_at)}"
        )
    return ConditionValue("True", "InSync")


def _review_heartbeat(job: Snapshot) -> ConditionValue:
    if job.heartbeat is None or job.stalls_at is None:
        return ConditionValue("Unknown", "NoReports", "the trainer has not reported")
    if job.now >= job.stalls_at:
        return ConditionValue(
            "True", "HeartbeatStopped", f"the trainer last reported at {format_timestamp(job.heartbeat)}"
        )
    return ConditionValue("False", "StepAdvancing")


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
