"""PURE: what holds a job, since when, and what to do, from its conditions."""

from __future__ import annotations

from omni_operator.api.status import Condition, Status
from omni_operator.status.explained_reasons import REASONS

# Conditions that tell why a job in this state is there; the first that is not as wanted counts.
_WANTED = (("Admitted", "False"), ("Ready", "False"), ("ProgressStalled", "True"), ("WeightsInSync", "False"))
_ENDS = {"Succeeded": "Succeeded", "Failed": "Failed", "Suspended": "Suspended", "Suspending": "Suspended"}
_REQUESTED = {"Suspended": "drl resume continues from the last checkpoint"}


def explain(name: str, status: Status, created: str | None, deleted: str | None = None) -> str:
    """One paragraph about a job.

    Args:
        created, deleted: times of its creation, and of the request to delete it.
    """
    if deleted:
        return f"{name} is being deleted since {deleted}."
    if status.state is None:
        return (
            f"{name} was created at {created or 'an unknown time'}, and no operator has seen it. "
            "What to do: check that the operator runs and watches this namespace."
        )
    found = find_cause(status)
    parts = [f"{name} is {status.state}" + (f", step {status.progress.summary}" if status.progress.summary else "")]
    if found is None:
        return f"{parts[0]}. Nothing holds it."
    since = f" since {found.last_transition_time}" if found.last_transition_time else ""
    parts.append(f"{found.type} is {found.status}{since}: {found.reason}")
    if found.message:
        parts[-1] += f": {found.message}"
    if advice := _REQUESTED.get(status.state) or _advice(found.reason):
        parts.append(f"What to do: {advice}")
    return ". ".join(part.rstrip(".") for part in parts) + "."


def find_cause(status: Status) -> Condition | None:
    """The condition behind the state; None if nothing holds the job."""
    if status.state in _ENDS:
        return status.condition(_ENDS[status.state])
    for kind, held in _WANTED:
        condition = status.condition(kind)
        if condition is not None and condition.status == held:
            return condition
    return None


def _advice(reason: str) -> str:
    """What to do about a reason, as the end of a sentence; empty if there is nothing to do."""
    known = REASONS.get(reason)
    return (known.action[:1].lower() + known.action[1:]).replace("`", "") if known else ""
