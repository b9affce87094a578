"""PURE: state and reason of a job, one word each, from its conditions."""

from __future__ import annotations

from omni_operator.api.status import Condition, JobState, Status


def with_state(status: Status) -> Status:
    """The status with `state` and `reason` that its conditions say; without conditions, unchanged."""
    conditions = {condition.type: condition for condition in status.conditions}
    if not {"Admitted", "Ready", "Suspended", "Succeeded", "Failed"} <= conditions.keys():
        return status
    state, reason = _state(conditions, status)
    return status.model_copy(update={"state": state, "reason": reason})


def _state(found: dict[str, Condition], status: Status) -> tuple[JobState, str]:
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
