"""Writer of a job's status: repeated at once while only the rest of the job changes, as its labels."""

from __future__ import annotations

import logging

from omni_operator.cluster.errors import Conflict, Forbidden, NotFound
from omni_operator.cluster.kinds import JOBS, Body
from omni_operator.cluster.protocol import Cluster

TRIES = 6  # who edits labels in a loop wins a few races, and must not keep the status from being written
log = logging.getLogger(__name__)


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
