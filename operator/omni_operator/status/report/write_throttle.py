"""PURE: throttle of status writes: now, later or never."""

from __future__ import annotations

from datetime import datetime, timedelta

from omni_operator.api.status import Status, Usage
from omni_operator.status.observed.timestamps import EARLIEST, parse_timestamp

APART = timedelta(seconds=15)
HEARTBEATS_APART = timedelta(minutes=5)  # less than the silence after which a job is stalled


def next_write_time(previous: Status, derived: Status, last: datetime | None, now: datetime) -> datetime | None:
    """Time at which to write `derived`; None if it equals `previous`.

    Args:
        last: time at which this process last wrote the status; None if it has not.
    """
    if derived == previous:
        return None
    if last is None or _urgent_part(previous) != _urgent_part(derived):
        return now
    if _without_heartbeat(previous) == _without_heartbeat(derived):
        written = parse_timestamp(previous.progress.heartbeat_time) or EARLIEST
        return max(now, last + APART, written + HEARTBEATS_APART)
    return max(now, last + APART)


def _without_heartbeat(status: Status) -> Status:
    """The status without what each report changes even if nothing happens: its time, and the usage up to it."""
    progress = status.progress.model_copy(update={"heartbeat_time": None})
    return status.model_copy(update={"progress": progress, "usage": Usage(samples=status.usage.samples)})


def _urgent_part(status: Status) -> object:
    """The part that users and programs act on, written at once; numbers and messages wait."""
    conditions = tuple((found.type, found.status, found.reason) for found in status.conditions)
    children = status.children
    warned = tuple((warning.attempt, warning.reason) for warning in status.warnings)
    return (
        status.observed_generation,
        conditions,
        warned,
        status.attempts,
        status.failures,
        status.failures_counted,
        status.disruptions_counted,
        status.usage.accelerators,  # seconds count at the number that the status has
        children.ray_job,
        children.ray_cluster,
        status.start_time,
        status.completion_time,
        status.checkpoint.last,
    )
