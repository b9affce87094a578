"""Watches of one kind: lists, continuation after breaks, expired versions, API servers that stream no lists."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

from omni_operator.cluster.errors import Expired, Forbidden, KindAbsent, Refused, Unavailable
from omni_operator.cluster.kinds import JOBS, Body, Kind
from omni_operator.cluster.watch import object_watch as module
from omni_operator.cluster.watch.object_watch import ObjectWatch

END = {"k8s.io/initial-events-end": "true"}


def job(name: str, version: int, **meta: Any) -> Body:
    return {"metadata": {"namespace": "ns", "name": name, "uid": f"u-{name}", "resourceVersion": str(version), **meta}}


def bookmark(version: int, **annotations: str) -> tuple[str, Body]:
    return "BOOKMARK", {"metadata": {"resourceVersion": str(version), "annotations": annotations}}


@dataclass
class ScriptedSource:
    """A source whose answers are scripts: changes and errors in order; the last script stays open."""

    streams: list[list[Any]]
    lists: list[list[Any]] = field(default_factory=list)
    since: list[str | None] = field(default_factory=list)
    open: int = 0
    exhausted: asyncio.Event = field(default_factory=asyncio.Event)

    async def changes(
        self, kind: Kind, namespace: str | None, selector: str, since: str | None
    ) -> AsyncGenerator[tuple[str, Body]]:
        self.since.append(since)
        self.open += 1
        try:
            for item in self.streams.pop(0):
                if isinstance(item, Exception):
                    raise item
                yield item
            if not self.streams:
                self.exhausted.set()
                await asyncio.Event().wait()
        finally:
            self.open -= 1

    async def pages(self, kind: Kind, namespace: str | None, selector: str) -> AsyncGenerator[tuple[list[Body], str]]:
        for item in self.lists.pop(0):
            if isinstance(item, Exception):
                raise item
            yield item


@dataclass
class Seen:
    changes: list[tuple[str, str]] = field(default_factory=list)
    lists: list[tuple[set[str], int]] = field(default_factory=list)
    versions: list[dict[str, int]] = field(default_factory=list)
    synced: int = 0
    pauses: list[float] = field(default_factory=list)

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await asyncio.sleep(0)

    def handle(self, kind: Kind, change: str, body: Body) -> None:
        self.changes.append((change, body["metadata"]["name"]))

    def listed(self, kind: Kind, namespace: str | None, alive: dict[str, int], version: int) -> None:
        self.lists.append((set(alive), version))
        self.versions.append(alive)

    def sync(self) -> None:
        self.synced += 1


async def watch(*streams: list[Any], lists: list[list[Any]] | None = None) -> tuple[ScriptedSource, Seen]:
    """Run a watch to the end of its scripts."""
    source = ScriptedSource(list(streams), lists or [])
    seen = Seen()
    watching = ObjectWatch(source, JOBS, None, "", seen.handle, seen.listed, seen.sync, sleep=seen.sleep)
    task = asyncio.create_task(watching.run())
    async with asyncio.timeout(10):
        await source.exhausted.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert source.open == 0, "every connection is closed"
    return source, seen


async def test_a_broken_watch_continues_from_its_last_version_without_a_list() -> None:
    source, seen = await watch(
        [("ADDED", job("a", 7)), ("ADDED", job("b", 3)), bookmark(9, **END), ("MODIFIED", job("a", 10)), bookmark(15)],
        [Unavailable("reset")],
        [("DELETED", job("b", 16))],
    )
    assert source.since == [None, "15", "15"]
    assert seen.changes == [("ADDED", "a"), ("ADDED", "b"), ("MODIFIED", "a"), ("DELETED", "b")]
    assert (seen.lists, seen.synced) == ([({"u-a", "u-b"}, 9)], 1)


async def test_an_expired_version_leads_to_a_list_of_what_is_left() -> None:
    source, seen = await watch(
        [("ADDED", job("a", 1)), ("ADDED", job("b", 2)), bookmark(2, **END)],
        [Expired("too old")],
        [("ADDED", job("b", 2)), bookmark(8, **END)],
    )
    assert source.since == [None, "2", None]
    assert seen.lists == [({"u-a", "u-b"}, 2), ({"u-b"}, 8)]
    assert seen.versions == [{"u-a": 1, "u-b": 2}, {"u-b": 2}]


async def test_lists_that_expire_one_after_the_other_are_not_requested_all_the_time() -> None:
    """Such as of an API server whose etcd is compacted before it has sent a list: each one costs it all objects."""
    expires = [("ADDED", job("a", 1)), bookmark(2, **END), Expired("too old")]
    source, seen = await watch(*[expires] * 12, [("ADDED", job("a", 1)), bookmark(2, **END)])
    assert source.since == [None] * 13
    assert seen.pauses == [min(module.PAUSE_FIRST * 2**count, module.PAUSE_MOST) for count in range(1, 12)]
    change = [bookmark(2, **END), ("ADDED", job("b", 3)), Expired("too old")]
    source, seen = await watch(*[change] * 12, [bookmark(4, **END)])
    assert (source.since, seen.pauses) == ([None] * 13, []), "after a change the next list follows at once"


async def test_a_list_that_breaks_off_is_not_complete() -> None:
    source, seen = await watch(
        [("ADDED", job("a", 1))],
        [("ADDED", job("a", 1)), Unavailable("reset")],
        [("ADDED", job("a", 1)), bookmark(1), ("ADDED", job("b", 2)), bookmark(2, **END)],
    )
    assert source.since == [None, None, None]
    assert seen.lists == [({"u-a", "u-b"}, 2)]


async def test_an_api_server_that_streams_no_lists_is_listed_in_pages() -> None:
    source, seen = await watch(
        [Refused("sendInitialEvents is forbidden for watch")],
        [("ADDED", job("c", 6)), Expired("too old")],
        [],
        lists=[[([job("a", 1)], "5"), ([job("b", 2)], "5")], [([job("c", 6)], "9")]],
    )
    assert source.since == [None, "5", "9"]
    assert seen.lists == [({"u-a", "u-b"}, 5), ({"u-c"}, 9)]
    assert seen.versions == [{"u-a": 1, "u-b": 2}, {"u-c": 6}]


async def test_a_missing_permission_is_retried_and_no_reason_for_pages() -> None:
    source, seen = await watch([Forbidden("no")], [bookmark(2, **END)])
    assert source.since == [None, None]
    assert seen.lists == [(set(), 2)]


async def test_a_kind_that_is_not_served_has_no_objects() -> None:
    _, seen = await watch([KindAbsent("rayjobs")], [])
    assert (seen.lists, seen.synced) == ([], 1)
