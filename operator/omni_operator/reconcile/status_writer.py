"""Writes of a job's status: when one is due, the write itself, and the events about what has changed.

A write is repeated at once while only the rest of the job changes, as its labels.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from omni_operator.api.status import Status, Usage
from omni_operator.cluster.cache.job_parser import parse_status
from omni_operator.cluster.cache.object_cache import ObjectCache
from omni_operator.cluster.errors import Conflict, Forbidden, NotFound
from omni_operator.cluster.event_writer import EventWriter
from omni_operator.cluster.kinds import JOBS, Body, Kind
from omni_operator.cluster.protocol import Cluster
from omni_operator.plan.digest import compute_digest
from omni_operator.reconcile.corrections import Change, describe
from omni_operator.reconcile.subject import ReconcileResult, Subject
from omni_operator.status.observed.timestamps import EARLIEST, parse_timestamp
from omni_operator.status.report.events import find_events

TRIES = 6  # who edits labels in a loop wins a few races, and must not keep the status from being written
APART = timedelta(seconds=15)
HEARTBEATS_APART = timedelta(minutes=5)  # less than the silence after which a job is stalled
NEXT_PASS = timedelta(seconds=1)  # pause after a write that an admission webhook has altered
STATUS = Change(("status",))
STATUS_CHANGED = (
    f"{describe('the status', '')}, as a second release of the operator does if it watches this namespace with other "
    "settings"
)
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StatusWriter:
    """Writes the statuses of all jobs.

    Attributes:
        failed: called with the reason of every failed attempt.
        written: called with every job whose status was written, as the API server returned it.
    """

    cluster: Cluster
    cache: ObjectCache
    events: EventWriter
    failed: Callable[[str], None]
    written: Callable[[Kind, Body], None]

    async def write(self, job: Subject, derived: Status, *, replaced: bool = False) -> ReconcileResult:
        """Write the status if it is due, then create events for what changed; `replaced` as in `find_events`."""
        memory = job.memory
        due = next_write_time(job.status, derived, memory.written, job.now)
        if due and memory.altered and memory.written:
            due = max(due, memory.written + APART)
        overwritten = bool(due and memory.stored) and memory.stored != compute_digest(job.status.body())
        if due and overwritten:
            due = max(due, memory.corrections.pause_end(STATUS, job.now) or due)
        if due is None or due > job.now:
            return ReconcileResult(wake=due)
        with memory.refused.counting_errors():
            answer, written = await write_status(self.cluster, job.body, derived.body())
        if answer is None:
            # Deleted, and the watch is late. Garbage collection deletes what this pass created: its owner is gone.
            self.cache.remove_job(job.key, job.facts.uid)
            return ReconcileResult(result="gone")
        self.cache.put(JOBS, answer)
        if not written:
            return ReconcileResult(result="conflict")
        self.written(JOBS, answer)
        memory.written = job.now
        stored = parse_status(answer)
        # By an admission webhook, which would do so each time.
        memory.altered = stored != derived
        memory.stored = compute_digest(stored.body())
        if overwritten:
            memory.corrections.record(STATUS, job.now, STATUS_CHANGED)
            log.warning("%s/%s: %s", *job.key, STATUS_CHANGED)
        known = {failure.attempt for failure in job.status.failures}
        for failure in derived.failures:
            if failure.attempt not in known:
                self.failed(failure.reason)
        for event in find_events(job.status, derived, replaced=replaced):
            await self.events.create(job.body, event, job.now)
        # The next pass follows at once: after a failure it creates the next attempt without waiting for the watch.
        return ReconcileResult(wake=job.now + NEXT_PASS if memory.altered else job.now, result="wrote")


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
