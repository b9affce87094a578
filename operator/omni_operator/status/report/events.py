"""PURE: Kubernetes events that report the difference between two statuses."""

from dataclasses import dataclass
from typing import Literal

from omni_operator.api.status import Condition, Status, TrainerWarning
from omni_operator.status.reasons.table import REASONS


@dataclass(frozen=True, slots=True)
class Event:
    """An event about a job.

    Attributes:
        key: identifies the event within the job, so that it is written once.
    """

    kind: Literal["Normal", "Warning"]
    reason: str
    note: str
    key: str


def find_events(previous: Status, new: Status, *, replaced: bool = False) -> tuple[Event, ...]:
    """Events for the difference between two statuses.

    Args:
        replaced: whether rollout pods are missing only because the operator replaces them.
    """
    events: list[Event] = []
    if new.attempts > max(1, previous.attempts):  # the first attempt is not news
        resumes = f", resumes from {new.checkpoint.last}" if new.checkpoint.last else ""
        note = f"attempt {new.attempts}{resumes}"
        events.append(Event("Normal", "AttemptCreated", note, f"a{new.attempts}"))
    old = {failure.attempt for failure in previous.failures}
    for failure in new.failures:
        if failure.attempt not in old:
            note = f"attempt {failure.attempt}: {failure.reason}: {failure.message}"
            events.append(Event("Warning", "AttemptFailed", note, f"f{failure.attempt}"))
    known = {(warning.attempt, warning.reason) for warning in previous.warnings}
    events += [_of_warning(warning) for warning in new.warnings if (warning.attempt, warning.reason) not in known]
    asked = previous.condition("Suspended")
    if asked and asked.status == "Unknown" and new.checkpoint.last not in (None, previous.checkpoint.last):
        events.append(Event("Normal", "CheckpointSaved", new.checkpoint.last, f"c{new.checkpoint.last}"))
    events += [] if replaced else _lost_rollouts(previous, new)
    for condition in new.conditions:
        events.extend(_of_condition(previous.condition(condition.type), condition, new.attempts))
    return tuple(events)


def _lost_rollouts(previous: Status, new: Status) -> list[Event]:
    """Event for fewer ready rollout pods than before, of an attempt that continues."""
    ready = new.condition("Ready")
    before = previous.rollout.ready
    after = new.rollout.ready
    if ready is None or ready.reason not in ("TooFewRollouts", "RolloutsMissing"):
        return []
    if after >= before or previous.attempts != new.attempts:
        return []
    key = f"r{new.attempts}-{after}-{new.progress.heartbeat_time}"
    return [Event("Warning", "RolloutPodLost", f"attempt {new.attempts}: {ready.message}", key)]


def _of_warning(warning: TrainerWarning) -> Event:
    """Event for a warning of the trainer; a reason without an event of its name becomes part of the note."""
    key = f"w{warning.attempt}-{warning.reason}"
    if _has_event(warning.reason):
        return Event("Warning", warning.reason, f"attempt {warning.attempt}: {warning.message}", key)
    note = f"attempt {warning.attempt}: {warning.reason}: {warning.message}"
    return Event("Warning", "TrainerWarning", note, key)


def _of_reason(condition: Condition, key: str) -> list[Event]:
    """Event for a condition that has become False, if the table of reasons has one for its reason."""
    if not _has_event(condition.reason) or condition.reason == "Suspending":  # `Suspended` has that event
        return []
    kind: Literal["Normal", "Warning"] = "Normal" if REASONS[condition.reason].normal else "Warning"
    return [Event(kind, condition.reason, condition.message or condition.reason, key)]


def _has_event(reason: str) -> bool:
    return reason in REASONS and "event" in REASONS[reason].shown


def _of_condition(old: Condition | None, new: Condition, attempt: int) -> list[Event]:
    """Events for a change of one condition's status or reason."""
    before = (old.status, old.reason) if old else ("", "")
    if before == (new.status, new.reason):
        return []
    key = f"{new.type}-{new.status}-{new.reason}-{attempt}-{new.last_transition_time}"
    match new.type, new.status:
        case "Succeeded", "True":
            return [Event("Normal", "Succeeded", new.message, key)]
        case "Failed", "True":
            return [Event("Warning", "Failed", f"{new.reason}: {new.message}", key)]
        case "Suspended", "True":
            return [Event("Normal", "Suspended", new.message, key)]
        case "Suspended", "Unknown":
            return [Event("Normal", "Suspending", new.message, key)]
        case "Suspended", "False" if before[0] in ("True", "Unknown"):
            return [Event("Normal", "Resumed", "spec.suspend is false", key)]
        case "Admitted", "True" if new.reason == "PartiallyAdmitted":
            return [Event("Normal", "PartiallyAdmitted", f"attempt {attempt}: {new.message}", key)]
        case "ProgressStalled", "True":
            return [Event("Warning", "ProgressStalled", new.message, key)]
        case "ProgressStalled", "False" if before[0] == "True":
            return [Event("Normal", "ProgressResumed", "the trainer reports again", key)]
        case "WeightsInSync", "False":
            return [Event("Warning", "WeightsBehind", new.message, key)]
        case "WeightsInSync", "True" if before[0] == "False":
            return [Event("Normal", "WeightsInSync", "all engines have the trainer's weights", key)]
        case "Ready", "True" if before[0] != "True" and new.reason not in ("Finished", "Suspended"):
            return [Event("Normal", "Running", f"attempt {attempt}", key)]
        case "Ready" | "Updated" | "ResultsKept" | "AcceleratorChosen", "False":
            return _of_reason(new, key)
        case "Updated", "True" if before[1] == "RollingUpdate":
            return [Event("Normal", "PodsUpdated", "all pods have the current spec", key)]
        case _:
            return []
