"""Condition `ReconcileError` of a job whose passes fail, written without reading the rest of its status.

Another field manager owns this one condition, so that writing and removing it changes nothing else.
"""

import logging
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from omni_operator.api.status import RECONCILE_ERROR
from omni_operator.cluster.cache.job_parser import is_reconcile_error
from omni_operator.cluster.cache.object_cache import ObjectCache
from omni_operator.cluster.errors import ClusterError
from omni_operator.cluster.event_writer import EventWriter
from omni_operator.cluster.kinds import JOBS, Body, Key
from omni_operator.cluster.protocol import Cluster
from omni_operator.status.observed import evidence
from omni_operator.status.observed.timestamps import format_timestamp
from omni_operator.status.report.conditions import MESSAGE_LIMIT
from omni_operator.status.report.events import Event

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PassErrors:
    """Writes and removes the condition."""

    cluster: Cluster
    cache: ObjectCache
    events: EventWriter

    async def show(self, key: Key, body: Body, error: Exception, now: datetime) -> None:
        """Write the condition, with an event, unless the job has it with the same words."""
        reason = type(error).__name__[:64]
        text = evidence.shorten(f"{error}", MESSAGE_LIMIT).encode("utf-8", "replace").decode()
        old = find_condition(body) or {}
        if (old.get("reason"), old.get("message")) == (reason, text):
            return
        condition: Body = {
            "type": RECONCILE_ERROR,
            "status": "True",
            "reason": reason,
            "message": text,
            "lastTransitionTime": old.get("lastTransitionTime") or format_timestamp(now),
        }
        if await self._write(key, body, condition):
            note = f"{reason}: {text}"
            await self.events.create(body, Event("Warning", "ReconcileError", note, f"e{note}"), now)

    async def clear(self, key: Key, body: Body) -> None:
        """Remove the condition if the job has it."""
        if find_condition(body):
            await self._write(key, body, None)

    async def _write(self, key: Key, body: Body, condition: Body | None) -> bool:
        try:
            answer = await self.cluster.apply_condition(JOBS, *key, body["metadata"]["uid"], condition)
        except ClusterError as error:
            log.warning("%s/%s: condition %s not written: %s", *key, RECONCILE_ERROR, error)
            return False
        self.cache.put(JOBS, answer)
        return True


def find_condition(body: Body) -> dict[str, Any] | None:
    """The condition in a job's object; None without it, whatever the rest of its status is."""
    status = body.get("status")
    conditions = status.get("conditions") if isinstance(status, dict) else None
    return next((condition for condition in conditions or () if is_reconcile_error(condition)), None)
