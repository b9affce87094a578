"""Writes of a job's status: when one is due, and the write itself.

A write is repeated at once while only the rest of the job changes, as its labels.
"""

import logging
from datetime import datetime, timedelta

from omni_operator.api.status import Status, Usage
from omni_operator.cluster.errors import Conflict, Forbidden, NotFound
from omni_operator.cluster.kinds import JOBS, Body
from omni_operator.cluster.protocol import Cluster
from omni_operator.status.observed.timestamps import EARLIEST, parse_timestamp

TRIES = 6  # who edits labels in a loop wins a few races, and must not keep the status from being written
APART = timedelta(seconds=15)
HEARTBEATS_APART = timedelta(minutes=5)  # less than the silence after which a job is stalled
log = logging.getLogger(__name__)


def next_write_time(previous: Status, derived: Status, last: datetime | None, now: datetime) -> datetime | None:
    """Time at which to write `derived`; None if it equals `previous`. PURE.

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
    conditions = tuple((condition.type, condition.status, condition.reason) for condition in status.conditions)
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


async def write_status(cluster: Cluster, body: Body, status: Body) -> tuple[Body | None, bool]:
    """Write the status that was decided for a version of a job.

    Returns:
        The job as the API server has it by now, None if it was deleted, and whether the status was written. It was not
        if another status was written meanwhile, or if the job changed too often.
    """
    meta = body["metadata"]
    for _ in range(TRIES):
        try:
            return await cluster.apply_status(JOBS, body, status), True
        except (Conflict, NotFound) as error:
            log.info("%s/%s: status not written: %s", meta["namespace"], meta["name"], error)
        try:
            # Without waiting for the watch: what a pass did has to be recorded before anything follows from it.
            current = await cluster.read(JOBS, meta["namespace"], meta["name"])
        except Forbidden as error:
            log.warning("%s/%s: the watch has to deliver the job: %s", meta["namespace"], meta["name"], error)
            return body, False
        if current is None or not is_as_decided(current, body):
            return current, False
        body = current
    return body, False


def is_as_decided(current: Body, body: Body) -> bool:
    """Whether a job was neither created again nor its status written since a pass began with `body`."""
    return (current["metadata"]["uid"], current.get("status")) == (body["metadata"]["uid"], body.get("status"))
