"""What only the replica that leads does: passes over the jobs."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from omni_operator.cluster.cache.object_cache import ObjectCache
from omni_operator.cluster.kinds import Key
from omni_operator.reconcile.reconciler import Reconciler
from omni_operator.reconcile.subject import ReconcileResult
from omni_operator.reports.endpoint import ReportStore
from omni_operator.settings import Settings

from .job_workers import JobWorkers


@dataclass(slots=True)
class LeadingReplica:
    """Passes while this replica leads. Nothing that it remembered of an earlier time is used: another one led since.

    Attributes:
        measured: called with result and seconds of every pass.
        workers: the queue of jobs; it ignores what wakes a job while this replica does not lead.
    """

    cache: ObjectCache
    reports: ReportStore
    settings: Settings
    measured: Callable[[str, float], None]
    new_reconciler: Callable[[], Reconciler]
    clock: Callable[[], datetime]
    workers: JobWorkers = field(init=False)
    _reconciler: Reconciler = field(init=False)

    def __post_init__(self) -> None:
        self.workers = JobWorkers(
            self._reconcile,
            rank=self._rank,
            revision=self._revision,
            measured=self.measured,
            clock=self.clock,
            resync=lambda: self.settings.resync_seconds * random.uniform(0.9, 1.1),
            passes=self.settings.passes,
            started=False,
        )

    def begin(self) -> None:
        """Make passes over the jobs that are woken from now on."""
        self._reconciler = self.new_reconciler()
        self.reports.clear()
        self.workers.start()

    async def end(self, seconds: float) -> bool:
        """End the passes. Return whether none had to be cancelled after these seconds."""
        return await self.workers.stop(seconds)

    async def _reconcile(self, key: Key) -> ReconcileResult:
        return await self._reconciler.reconcile(key)

    def _rank(self, key: Key) -> int:
        summary = self.cache.summary(key)
        return summary.rank if summary else 1

    def _revision(self, key: Key) -> object:
        """Changes with the spec of a job, when its deletion begins and when it is gone."""
        summary = self.cache.summary(key)
        return summary.revision if summary else None
