"""Summary of a job: what queue and metrics read of all jobs, without parsing their objects again."""

from __future__ import annotations

from dataclasses import dataclass

from .kinds import Body

STATES = ("Running", "Waiting", "Suspended", "Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class JobSummary:
    """Summary of a job object.

    Attributes:
        state: one of `STATES`.
        is_new: whether it has no status yet.
        revision: changes with the spec, and when the deletion begins.
    """

    state: str
    is_new: bool
    revision: tuple[str, int, bool]

    @property
    def finished(self) -> bool:
        return self.state in ("Succeeded", "Failed")

    @property
    def rank(self) -> int:
        """Order of passes: new jobs, then those that may run, then finished ones that are not being deleted."""
        return 0 if self.is_new else 2 if self.finished and not self.revision[2] else 1


def summarize(body: Body) -> JobSummary:
    """Summarize a job object; an invalid status counts as none."""
    meta, status = body["metadata"], body.get("status")
    status = status if isinstance(status, dict) else {}
    generation = meta.get("generation")
    return JobSummary(
        _state(status), not status,
        (str(meta.get("uid") or ""), generation if isinstance(generation, int) else 0, "deletionTimestamp" in meta),
    )  # fmt: skip


def _state(status: Body) -> str:
    conditions = status.get("conditions")
    true = {
        str(item.get("type"))
        for item in (conditions if isinstance(conditions, list) else ())
        if isinstance(item, dict) and item.get("status") == "True"
    }
    for kind in ("Succeeded", "Failed", "Suspended"):
        if kind in true:
            return kind
    return "Running" if status.get("runningTime") else "Waiting"
