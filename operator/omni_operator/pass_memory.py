"""State between the passes of one process. If it is lost, requests may be repeated, and nothing else happens."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from omni_operator.cluster.corrections import CorrectionRows
from omni_operator.cluster.kinds import Key, Kind
from omni_operator.cluster.refusals import NO_REFUSALS, NO_SERVER_ERRORS, Refusals, ServerErrors
from omni_operator.status.timestamps import EARLIEST


@dataclass(slots=True)
class JobMemory:
    """State between passes over one job.

    Attributes:
        uid: of the job.
        written: when its status was last written.
        conflicts: passes in a row that ended with a conflict.
        altered: whether another status was stored than the one that was sent.
        lost: name of a RayJob that the status records, and that the API server does not have.
        lost_cluster: uid of such a RayCluster.
        ensured: generation of the job and last change of its shared objects when these were last compared; None while
            something is missing or waits to be corrected.
        corrections: of its objects, which others may change again each time.
    """

    uid: str
    written: datetime | None = None
    conflicts: int = 0
    altered: bool = False
    refusals: Refusals = NO_REFUSALS
    server_errors: ServerErrors = NO_SERVER_ERRORS
    lost: str | None = None
    lost_cluster: str | None = None
    ensured: object = None
    corrections: CorrectionRows = field(default_factory=CorrectionRows)


@dataclass(slots=True)
class PassMemory:
    """State between passes over all jobs.

    Attributes:
        absent: kinds that are optional and not served, and until when nothing of them is created.
        listening: time of the first pass.
    """

    absent: dict[Kind, datetime] = field(default_factory=dict)
    listening: datetime = EARLIEST
    _jobs: dict[Key, JobMemory] = field(default_factory=dict)
    _newest: datetime = EARLIEST

    def begin_pass(self, now: datetime) -> None:
        """Forget everything if the clock was set back: pauses would last until it catches up."""
        if now < self._newest or self._newest == EARLIEST:
            self.absent.clear()
            self._jobs.clear()
            self.listening = now
        self._newest = now

    def of(self, key: Key, uid: str) -> JobMemory:
        """What is remembered of the job with this uid; nothing of an earlier job of its name."""
        found = self._jobs.get(key)
        if found is None or found.uid != uid:
            found = self._jobs[key] = JobMemory(uid)
        return found

    def forget(self, key: Key) -> None:
        """Drop what is remembered of a job that does not exist any more."""
        self._jobs.pop(key, None)
