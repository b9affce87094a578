"""Memory of a job that is cached and idle: bounded, and given back when the job is deleted."""

from __future__ import annotations

import asyncio
import gc
import json
import tracemalloc
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from omni_operator.api.names import CHECKSUM_ANNOTATION
from omni_operator.cluster.cache.object_cache import ObjectCache
from omni_operator.cluster.kinds import JOBS, NETWORK_POLICIES, PODS, RAYCLUSTERS, RAYJOBS, Body, Kind
from omni_operator.handlers.job_workers import JobWorkers
from omni_operator.plan.digest import digest_checked
from omni_operator.reconcile.reconciler import ReconcileResult

if TYPE_CHECKING:
    from .conftest import Simulation

pytestmark = pytest.mark.slow  # it traces every allocation

COUNT = 400  # so many that what other threads allocate meanwhile does not count
LIMIT = 20 * 1024
KINDS = (RAYJOBS, RAYCLUSTERS, NETWORK_POLICIES, JOBS)
POD_LIMIT = 1024


async def test_a_cached_job_takes_less_than_20_kib_and_a_deleted_one_nothing(simulation: Simulation) -> None:
    await simulation.submit_running()
    simulation.report(step=3, **{"reward/mean": 0.25, "weights/version": 3, "samples": 96})
    await simulation.settle()
    texts = [(kind, json.dumps(body)) for kind in (*KINDS, PODS) for body in simulation.cluster.all(kind)]

    def copies(*kinds: Kind) -> Iterator[tuple[Kind, Body]]:
        """The objects of other jobs, one at a time, as a watch delivers them."""
        for number in range(COUNT):
            for kind, text in texts:
                if kind in kinds:
                    body = json.loads(text.replace("red", f"job-{number}").replace("uid-", f"uid-{number}-"))
                    if kind == RAYJOBS:
                        body["metadata"]["annotations"][CHECKSUM_ANNOTATION] = digest_checked(body)
                    yield kind, body

    async def reconcile(key: tuple[str, str]) -> ReconcileResult:
        return ReconcileResult(gone=cache.job(key) is None)

    async def passes() -> int:
        """Wake all jobs; return the memory in use after the passes."""
        for number in range(COUNT):
            workers.wake(("team-a", f"job-{number}"))
        while workers.depth or workers.tasks:
            await asyncio.sleep(0)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    cache = ObjectCache()
    workers = JobWorkers(
        reconcile,
        rank=lambda key: 1,
        revision=lambda key: None,
        resync=lambda: 3600.0,
        measured=lambda result, seconds: None,
        clock=lambda: datetime(2026, 1, 1, tzinfo=UTC),
        passes=16,
    )
    tracemalloc.start()
    try:
        empty = await passes()
        for kind, body in copies(*KINDS):
            cache.put(kind, body)
        full = await passes()
        for kind, body in copies(PODS):
            cache.put(kind, body)
        with_pods = await passes()
        for kind, body in copies(*KINDS, PODS):
            cache.remove(kind, body)
        end = await passes()
    finally:
        tracemalloc.stop()
    await workers.stop(10)
    assert len(cache.jobs()) == 0
    assert (full - empty) / COUNT < LIMIT
    assert (with_pods - full) / COUNT < 2 * POD_LIMIT, "a head and a worker"
    assert end - empty < 0.05 * (full - empty), "the tables of two dictionaries"
