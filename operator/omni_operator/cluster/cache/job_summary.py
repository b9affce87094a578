"""Summary of a job: what queue and metrics read of all jobs, without parsing their objects again."""

from dataclasses import dataclass
from typing import get_args

from omni_operator.api.status import UNSEEN, JobState
from omni_operator.cluster.kinds import Body
from omni_operator.status.observed.timestamps import parse_timestamp

STATES: tuple[JobState, ...] = get_args(JobState)


@dataclass(frozen=True, slots=True)
class JobSummary:
    """Summary of a job object.

    Attributes:
        state: one of `STATES`.
        is_new: whether no operator has seen it.
        revision: changes with the spec, and when the deletion begins.
        completed: seconds since 1970 at which it succeeded or finally failed; 0 before.
    """

    state: JobState
    is_new: bool
    revision: tuple[str, int, bool]
    completed: int = 0

    @property
    def finished(self) -> bool:
        return self.state in ("Succeeded", "Failed")

    @property
    def rank(self) -> int:
        """Order of passes: new jobs, then those that may run, then finished ones that are not being deleted."""
        return 0 if self.is_new else 2 if self.finished and not self.revision[2] else 1

    @property
    def display_order(self) -> tuple[int, int]:
        """Order in which jobs get metrics: running, other unfinished, failed, succeeded; the last to end first."""
        group = {"Running": 0, "Failed": 2, "Succeeded": 3}.get(self.state, 1)
        return group, -self.completed if self.finished else 0


def summarize(body: Body) -> JobSummary:
    """Summarize a job object; an invalid status counts as none."""
    meta = body["metadata"]
    status = body.get("status")
    status = status if isinstance(status, dict) else {}
    generation = meta.get("generation")
    completed = parse_timestamp(status.get("completionTime"))
    return JobSummary(
        _state(status),
        status in ({}, UNSEEN),
        (str(meta.get("uid") or ""), generation if isinstance(generation, int) else 0, "deletionTimestamp" in meta),
        int(completed.timestamp()) if completed else 0,
    )


def _state(status: Body) -> JobState:
    """The written state; a job that has ended by its conditions has ended, whatever else the status says."""
    conditions = status.get("conditions")
    true = {
        str(item.get("type"))
        for item in (conditions if isinstance(conditions, list) else ())
        if isinstance(item, dict) and item.get("status") == "True"
    }
    if "Succeeded" in true:
        return "Succeeded"
    if "Failed" in true:
        return "Failed"
    return next((state for state in STATES if state == status.get("state")), "Pending")
