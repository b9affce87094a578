"""PURE: whether a status is worth a write now, later or never."""

from __future__ import annotations

from datetime import datetime, timedelta

from omni_operator.api.status import Status

APART = timedelta(seconds=15)


def next_write_time(previous: Status, derived: Status, last: datetime | None, now: datetime) -> datetime | None:
    """When to write `derived`: now, later, or None where it says nothing new.

    Args:
        last: when this process last wrote the status; None: it has not.
    """
    if derived == previous:
        return None
    if last is None or _telling(previous) != _telling(derived):
        return now
    return max(now, last + APART)


def _telling(status: Status) -> object:
    """What others act on: it is written at once. Figures and wording wait."""
    spoken = tuple((found.type, found.status, found.reason) for found in status.conditions)
    children = status.children
    warned = tuple((warning.attempt, warning.reason) for warning in status.warnings)
    return (
        status.observed_generation, spoken, warned, status.attempts, status.failures, status.failures_counted,
        children.ray_job, children.ray_cluster, status.start_time, status.completion_time,
    )  # fmt: skip
