"""Kinds that come after the operator."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from omni_operator.cluster.errors import Unavailable
from omni_operator.cluster.fake import FakeCluster
from omni_operator.cluster.kinds import JOBS, POD_MONITORS, RAYCLUSTERS, RAYJOBS
from omni_operator.handlers import process
from omni_operator.handlers.process import Arrivals


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    for name in ("LOOK_FIRST", "LOOK_MOST", "SETTLE"):
        monkeypatch.setattr(process, name, 0.001)
    return FakeCluster(lambda: datetime(2026, 1, 1, tzinfo=UTC))


async def test_a_kind_that_comes_later_is_a_reason_to_start_anew(cluster: FakeCluster) -> None:
    cluster.absent = {RAYJOBS, RAYCLUSTERS, POD_MONITORS}
    arrivals = Arrivals(cluster)
    await arrivals.look()
    assert arrivals.absent == {RAYJOBS, RAYCLUSTERS, POD_MONITORS}
    looking = asyncio.create_task(arrivals.run())
    while cluster.log.count(("get", "rayclusters")) < 3:
        await asyncio.sleep(0)
    assert not arrivals.came.is_set()
    cluster.absent = {POD_MONITORS}
    await asyncio.wait_for(arrivals.came.wait(), 30)
    looking.cancel()


async def test_what_is_there_is_not_asked_for_again(cluster: FakeCluster) -> None:
    arrivals = Arrivals(cluster)
    await arrivals.look()
    asked = len(cluster.log)
    looking = asyncio.create_task(arrivals.run())
    await asyncio.sleep(0.02)
    looking.cancel()
    assert (len(cluster.log), arrivals.came.is_set()) == (asked, False)


async def test_jobs_are_waited_for(cluster: FakeCluster) -> None:
    cluster.absent = {JOBS}
    waiting = asyncio.create_task(Arrivals(cluster).look())
    while cluster.log.count(("get", "diffusionrljobs")) < 3:
        await asyncio.sleep(0)
    assert not waiting.done()
    cluster.absent = set()
    await asyncio.wait_for(waiting, 30)


async def test_an_api_server_that_does_not_answer_has_nothing_new(cluster: FakeCluster) -> None:
    arrivals = Arrivals(cluster)
    arrivals.absent = {RAYJOBS}

    async def unavailable(kind: object) -> bool:
        cluster.log.append(("get", "nothing"))
        raise Unavailable("away")

    cluster.serves = unavailable  # type: ignore[method-assign]
    looking = asyncio.create_task(arrivals.run())
    while len(cluster.log) < 3:
        await asyncio.sleep(0)
    looking.cancel()
    assert not arrivals.came.is_set()
