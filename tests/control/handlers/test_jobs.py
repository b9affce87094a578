"""Jobs that arrive through kopf: when all are known, and deletions that no event reports."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import kopf
import pytest

from control.api.job_documents import SMALLEST
from e2e.fake_cluster import FakeCluster
from omni_operator.cluster.cache.object_cache import ObjectCache
from omni_operator.cluster.errors import Forbidden
from omni_operator.cluster.kinds import JOBS, RAYJOBS, Body, Key
from omni_operator.cluster.protocol import Listing
from omni_operator.cluster.watch.watch_liveness import WatchLiveness
from omni_operator.handlers import jobs
from omni_operator.handlers.jobs import EndlessBackoffs, JobLists, NoDiffs, configure_watches
from omni_operator.handlers.watches import CHILDREN, Watches

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Started:
    """Job lists over a cluster in memory, with all children listed."""

    def __init__(self, *namespaces: str) -> None:
        self.cluster = FakeCluster(lambda: NOW)
        self.cache = ObjectCache()
        self.woken: list[Key] = []
        self.restored: list[str] = []
        source: Any = None  # no watch runs
        self.watches = Watches(
            source,
            namespaces,
            self.cache,
            WatchLiveness(60.0),
            self.woken.append,
            lambda resource: None,
            "system",
            restored=lambda: self.restored.append("restored"),
        )
        for run in self.watches.runs():
            run.close()
        for kind in CHILDREN:
            for namespace in namespaces or (None,):
                self.watches.synced((kind, namespace))
        self.lists = JobLists(self.cluster, self.watches, namespaces)
        self.watches.listed_anew = self.lists.expire

    def make(self, name: str, namespace: str = "ns") -> Body:
        meta = {"name": name, "namespace": namespace}
        return self.cluster.make({**SMALLEST, "metadata": meta, "spec": {}, "status": {"attempts": 1}})

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.lists.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FIRST_PAUSE", "LONGEST_PAUSE", "POLL_SECONDS", "SETTLE_SECONDS"):
        monkeypatch.setattr(jobs, name, 0.001)
    monkeypatch.setattr(jobs, "LIST_AGAIN_SECONDS", 0.01)


async def until(there: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not there():
            await asyncio.sleep(0.001)


async def test_passes_begin_when_each_listed_job_is_delivered_or_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "LIST_AGAIN_SECONDS", 0.5)
    started = Started()
    red, blue, green = (started.make(name) for name in ("red", "blue", "green"))
    async with started.running():
        started.lists.changed(None, red)
        await asyncio.sleep(0.1)
        assert started.woken == [], "blue is listed and not delivered"
        started.lists.changed(None, blue)
        started.cluster.remove(JOBS, "ns", green["metadata"]["name"])
        await until(lambda: set(started.woken) == {("ns", "red"), ("ns", "blue")})
    assert started.cluster.counts()["get", "diffusionrljobs"] == 0


async def test_jobs_that_kopf_missed_in_an_interrupted_list_are_read() -> None:
    started = Started()
    red, blue = started.make("red"), started.make("blue")
    async with started.running():
        await asyncio.sleep(0.1)
        assert started.woken == [], "kopf has not begun"
        started.lists.changed(None, red)
        await until(lambda: set(started.woken) == {("ns", "red"), ("ns", "blue")})
        started.woken.clear()
        newer = started.cluster.change(JOBS, "ns", "blue", spec={"suspend": True})
        started.lists.changed(None, red)
        await until(lambda: ("ns", "blue") in started.woken)
        assert (started.cache.job(("ns", "blue")) or {})["spec"] == newer["spec"] != blue["spec"]


@pytest.mark.parametrize("tells", ["kopf lists again", "children are listed again"])
async def test_a_deletion_during_an_expired_watch_is_found_in_a_list(tells: str) -> None:
    started = Started()
    red, blue = started.make("red"), started.make("blue")
    async with started.running():
        for body in (red, blue):
            started.lists.changed(None, body)
        await until(lambda: len(started.woken) >= 2)
        started.woken.clear()
        started.cluster.remove(JOBS, "ns", "red")
        if tells == "kopf lists again":
            started.lists.changed(None, blue)
        else:
            started.watches.compare(RAYJOBS, None, {}, 100)
        await until(lambda: ("ns", "red") in started.woken)
        assert started.cache.jobs() == [("ns", "blue")]
        assert started.restored == []


async def test_a_list_with_an_older_job_than_before_is_a_restored_etcd() -> None:
    started = Started()
    red = started.make("red")
    newer = {**red, "metadata": {**red["metadata"], "resourceVersion": "3"}}
    async with started.running():
        started.lists.changed(None, newer)
        for _ in range(5):
            started.make("another")
            started.cluster.remove(JOBS, "ns", "another")
        await until(lambda: started.restored != [])


async def test_a_namespace_whose_jobs_may_not_be_listed_waits_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    started = Started("ns", "shut")
    red, blue = started.make("red"), started.make("blue", "shut")
    list_metadata, denied = started.cluster.list_metadata, [True]

    async def refuse(kind: Any, namespace: str | None, selector: str) -> Listing:
        if namespace == "shut" and denied[0]:
            raise Forbidden("list diffusionrljobs")
        return await list_metadata(kind, namespace, selector)

    monkeypatch.setattr(started.cluster, "list_metadata", refuse)
    async with started.running():
        started.lists.changed(None, red)
        await until(lambda: ("ns", "red") in started.woken)
        denied[0] = False
        started.lists.changed(None, blue)
        await until(lambda: ("shut", "blue") in started.woken)


def test_kopf_never_gives_up_and_its_pauses_stay_short() -> None:
    pauses = list(islice(EndlessBackoffs(), 1000))
    assert len(pauses) == 1000
    assert max(pauses) <= jobs.LONGEST_PAUSE
    settings = kopf.OperatorSettings()
    configure_watches(settings, streams_lists=True)
    assert isinstance(settings.networking.error_backoffs, EndlessBackoffs)
    assert settings.watching.initial_streaming
    assert isinstance(settings.persistence.diffbase_storage, NoDiffs)


async def test_a_status_that_kopf_does_not_deliver_is_overdue_unless_its_job_is_gone() -> None:
    started = Started()
    red = started.make("red")
    liveness = started.watches.liveness
    version = int(red["metadata"]["resourceVersion"])
    answers = [{**red, "metadata": {**red["metadata"], "resourceVersion": str(version + more)}} for more in (1, 2)]
    async with started.running():
        started.lists.changed(None, red)
        await until(lambda: ("ns", "red") in started.woken)
        liveness.expect(JOBS, answers[0], 0.0)
        assert liveness.overdue(61.0) == ["diffusionrljobs ns/red: written 61 s ago, no watch event since"]
        started.lists.changed("MODIFIED", answers[0])
        assert liveness.overdue(61.0) == []
        liveness.expect(JOBS, answers[1], 0.0)
        for _ in range(5):
            started.make("another")
            started.cluster.remove(JOBS, "ns", "another")
        started.cluster.remove(JOBS, "ns", "red")
        started.lists.expire(None)
        await until(lambda: liveness.overdue(61.0) == [])
        assert started.restored == []
