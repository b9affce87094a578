"""What a replica does while it leads: passes over all jobs, with nothing remembered of an earlier time."""

import asyncio
from datetime import UTC, datetime

from control.api.job_documents import SMALLEST
from e2e.fake_cluster import FakeCluster
from omni_operator.cluster.cache.object_cache import ObjectCache
from omni_operator.cluster.kinds import JOBS, RAYJOBS
from omni_operator.handlers.leading_replica import LeadingReplica
from omni_operator.plan import ClusterSettings
from omni_operator.reconcile.reconciler import Reconciler
from omni_operator.reports.endpoint import ReportStore
from omni_operator.settings import Settings
from omni_operator.status.observed.trainer_report import parse_event

KEY = ("team-a", "red")
NOW = datetime(2026, 1, 1, tzinfo=UTC)


async def test_passes_are_made_only_while_it_leads_and_start_with_nothing_remembered() -> None:
    cluster = FakeCluster(lambda: NOW)
    cache = ObjectCache()
    reports = ReportStore()
    reconcilers: list[Reconciler] = []

    def new_reconciler() -> Reconciler:
        reconcilers.append(
            Reconciler(
                cluster=cluster,
                cache=cache,
                reports=reports,
                settings=ClusterSettings(image="rollout:1"),
                clock=lambda: NOW,
                instance="test",
            )
        )
        return reconcilers[-1]

    replica = LeadingReplica(cache, reports, Settings(), lambda result, seconds: None, new_reconciler, lambda: NOW)
    job = cluster.make({**SMALLEST, "metadata": {"namespace": KEY[0], "name": KEY[1]}})
    cache.put(JOBS, job)
    replica.workers.wake(KEY)
    await asyncio.sleep(0)
    assert (cluster.log, replica.workers.tasks) == ([], 0)

    reports.take(KEY, job["metadata"]["uid"], 1, parse_event(b'{"event": "step", "step": 3}'), NOW)
    replica.begin()
    assert reports.newest(KEY, job["metadata"]["uid"]) is None, "another replica took newer ones"
    replica.workers.wake(KEY)
    async with asyncio.timeout(10):
        while not cluster.all(RAYJOBS):
            await asyncio.sleep(0)
    assert await replica.end(10)
    cluster.counts()
    replica.workers.wake(KEY)
    await asyncio.sleep(0)
    assert cluster.log == []
    replica.begin()
    assert await replica.end(10)
    assert len(reconcilers) == 2
