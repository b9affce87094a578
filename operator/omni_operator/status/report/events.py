"""PURE: Kubernetes events that report the difference between two statuses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from omni_operator.api.status import Condition, Status, TrainerWarning
from omni_operator.status.reasons.names import EventReason

# Reasons of Ready=False that users can act on.
_TROUBLES = {
    "InvalidSpec": EventReason.INVALID_SPEC,
    "KubeRayNotInstalled": EventReason.KUBERAY_MISSING,
    "ChildRefused": EventReason.REFUSED,
    "Forbidden": EventReason.REFUSED,
    "QuotaExceeded": EventReason.QUOTA_EXCEEDED,
    "NameTaken": EventReason.NAME_TAKEN,
    "ServerFailed": EventReason.SERVER_FAILED,
    "Unschedulable": EventReason.UNSCHEDULABLE,
    "ImagePullBackOff": EventReason.IMAGE_PULL_BACKOFF,
    "PodsRefused": EventReason.REFUSED,
    "ClaimNotFound": EventReason.CLAIM_NOT_FOUND,
    "ClaimNotBound": EventReason.CLAIM_NOT_BOUND,
    "CreateContainerConfigError": EventReason.CONTAINER_CONFIG_ERROR,
    "SidecarNotRunning": EventReason.SIDECAR_NOT_RUNNING,
}
_WARNINGS = {reason.value: reason for reason in (EventReason.SAMPLES_COLLAPSED, EventReason.SIDECAR_NOT_RUNNING)}


@dataclass(frozen=True, slots=True)
class Event:
    """An event about a job.

    Attributes:
        key: identifies the event within the job, so that it is written once.
    """

    kind: Literal["Normal", "Warning"]
    reason: EventReason
    note: str
    key: str


def find_events(previous: Status, new: Status, *, replaced: bool = False) -> tuple[Event, ...]:
    """Events for the difference between two statuses.

    Args:
        replaced: whether rollout pods are missing only because the operator replaces them.
    """
    made: list[Event] = []
    if new.attempts > max(1, previous.attempts):  # the first attempt is not news
        resumes = f", resumes from {new.checkpoint.last}" if new.checkpoint.last else ""
        note = f"attempt {new.attempts}{resumes}"
        made.append(Event("Normal", EventReason.ATTEMPT_CREATED, note, f"a{new.attempts}"))
    old = {failure.attempt for failure in previous.failures}
    for failure in new.failures:
        if failure.attempt not in old:
            note = f"attempt {failure.attempt}: {failure.reason}: {failure.message}"
            made.append(Event("Warning", EventReason.ATTEMPT_FAILED, note, f"f{failure.attempt}"))
    known = {(warning.attempt, warning.reason) for warning in previous.warnings}
    made += [_of_warning(found) for found in new.warnings if (found.attempt, found.reason) not in known]
    asked = previous.condition("Suspended")
    if asked and asked.status == "Unknown" and new.checkpoint.last not in (None, previous.checkpoint.last):
        made.append(Event("Normal", EventReason.CHECKPOINT_SAVED, new.checkpoint.last, f"c{new.checkpoint.last}"))
    made += [] if replaced else _lost_rollouts(previous, new)
    for condition in new.conditions:
        made.extend(_of_condition(previous.condition(condition.type), condition, new.attempts))
    return tuple(made)


def _lost_rollouts(previous: Status, new: Status) -> list[Event]:
    """Event for fewer ready rollout pods than before, of an attempt that continues."""
    ready, before, after = new.condition("Ready"), previous.rollout.ready, new.rollout.ready
    if ready is None or ready.reason not in ("TooFewRollouts", "RolloutsMissing"):
        return []
    if after >= before or previous.attempts != new.attempts:
        return []
    key = f"r{new.attempts}-{after}-{new.progress.heartbeat_time}"
    return [Event("Warning", EventReason.ROLLOUT_POD_LOST, f"attempt {new.attempts}: {ready.message}", key)]


def _of_warning(warning: TrainerWarning) -> Event:
    """Event for a warning of the trainer; an unknown reason becomes part of the note."""
    reason = _WARNINGS.get(warning.reason, EventReason.TRAINER_WARNING)
    named = f"{warning.reason}: {warning.message}" if reason is EventReason.TRAINER_WARNING else warning.message
    return Event("Warning", reason, f"attempt {warning.attempt}: {named}", f"w{warning.attempt}-{warning.reason}")


def _of_condition(old: Condition | None, new: Condition, attempt: int) -> list[Event]:
    """Events for a change of one condition's status or reason."""
    before = (old.status, old.reason) if old else ("", "")
    if before == (new.status, new.reason):
        return []
    key = f"{new.type}-{new.status}-{new.reason}-{attempt}-{new.last_transition_time}"
    match new.type, new.status:
        case "Succeeded", "True":
            return [Event("Normal", EventReason.SUCCEEDED, new.message, key)]
        case "Failed", "True":
            return [Event("Warning", EventReason.FAILED, f"{new.reason}: {new.message}", key)]
        case "Suspended", "True":
            return [Event("Normal", EventReason.SUSPENDED, new.message, key)]
        case "Suspended", "Unknown":
            return [Event("Normal", EventReason.SUSPENDING, new.message, key)]
        case "Suspended", "False" if before[0] in ("True", "Unknown"):
            return [Event("Normal", EventReason.RESUMED, "spec.suspend is false", key)]
        case "Admitted", "True" if new.reason == "PartiallyAdmitted":
            return [Event("Normal", EventReason.PARTIALLY_ADMITTED, f"attempt {attempt}: {new.message}", key)]
        case "ProgressStalled", "True":
            return [Event("Warning", EventReason.PROGRESS_STALLED, new.message, key)]
        case "ProgressStalled", "False" if before[0] == "True":
            return [Event("Normal", EventReason.PROGRESS_RESUMED, "the trainer reports again", key)]
        case "WeightsInSync", "False":
            return [Event("Warning", EventReason.WEIGHTS_BEHIND, new.message, key)]
        case "WeightsInSync", "True" if before[0] == "False":
            return [Event("Normal", EventReason.WEIGHTS_IN_SYNC, "all engines have the trainer's weights", key)]
        case "Ready", "True" if before[0] != "True" and new.reason not in ("Finished", "Suspended"):
            return [Event("Normal", EventReason.RUNNING, f"attempt {attempt}", key)]
        case "Ready", "False" if new.reason in _TROUBLES:
            return [Event("Warning", _TROUBLES[new.reason], new.message or new.reason, key)]
        case "ResultsKept", "False":
            return [Event("Warning", EventReason.RESULTS_ON_EMPTY_DIR, new.message, key)]
        case "AcceleratorChosen", "False":
            return [Event("Warning", EventReason.NO_VENDOR, new.message, key)]
        case "Updated", "False" if new.reason == "InvalidSpec" and before[1] != "InvalidSpec":
            return [Event("Warning", EventReason.INVALID_SPEC, new.message, key)]
        case "Updated", "False" if new.reason == "RollingUpdate":
            return [Event("Normal", EventReason.ROLLING_UPDATE, new.message, key)]
        case "Updated", "False" if new.reason == "RolledBack":
            return [Event("Warning", EventReason.ROLLED_BACK, new.message, key)]
        case "Updated", "False" if new.reason == "ChangedByOthers":
            return [Event("Warning", EventReason.CHANGED_BY_OTHERS, new.message, key)]
        case "Updated", "True" if before[1] == "RollingUpdate":
            return [Event("Normal", EventReason.PODS_UPDATED, "all pods have the current spec", key)]
        case _:
            return []
