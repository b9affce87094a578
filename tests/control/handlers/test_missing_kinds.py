"""Kinds that come after the operator."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from omni_operator.cluster.errors import Unavailable
from omni_operator.cluster.fake import FakeCluster
from omni_operator.cluster.kinds import JOBS, POD_MONITORS, RAYCLUSTERS, RAYJOBS
from omni_operator.handlers import background
from omni_operator.handlers.background import MissingKinds


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    for name in ("LOOK_FIRST", "LOOK_MOST", "SETTLE"):
        monkeypatch.setattr(background, name, 0.001)
    return FakeCluster(lambda: datetime(2026, 1, 1, tzinfo=UTC))


async def test_a_kind_that_comes_later_is_a_reason_to_start_anew(cluster: FakeCluster) -> None:
    cluster.absent = {RAYJOBS, RAYCLUSTERS, POD_MONITORS}
    missing = MissingKinds(cluster)
    await missing.look()
    assert missing.absent == {RAYJOBS, RAYCLUSTERS, POD_MONITORS}
    looking = asyncio.create_task(missing.run())
    while cluster.log.count(("get", "rayclusters")) < 3:
        await asyncio.sleep(0)
    assert not missing.served.is_set()
    cluster.absent = {POD_MONITORS}
    await asyncio.wait_for(missing.served.wait(), 30)
    looking.cancel()


async def test_what_is_there_is_not_asked_for_again(cluster: FakeCluster) -> None:
    missing = MissingKinds(cluster)
    await missing.look()
    asked = len(cluster.log)
    looking = asyncio.create_task(missing.run())
    await asyncio.sleep(0.02)
    looking.cancel()
    assert (len(cluster.log), missing.served.is_set()) == (asked, False)


async def test_jobs_are_waited_for(cluster: FakeCluster) -> None:
    cluster.absent = {JOBS}
    waiting = asyncio.create_task(MissingKinds(cluster).look())
    while cluster.log.count(("get", "diffusionrljobs")) < 3:
        await asyncio.sleep(0)
    assert not waiting.done()
    cluster.absent = set()
    await asyncio.wait_for(waiting, 30)


async def test_an_api_server_that_does_not_answer_has_nothing_new(cluster: FakeCluster) -> None:
    missing = MissingKinds(cluster)
    missing.absent = {RAYJOBS}

    async def unavailable(kind: object) -> bool:
        cluster.log.append(("get", "nothing"))
        raise Unavailable("away")

    cluster.serves = unavailable  # type: ignore[method-assign]
    looking = asyncio.create_task(missing.run())
    while len(cluster.log) < 3:
        await asyncio.sleep(0)
    looking.cancel()
    assert not missing.served.is_set()
