"""Start of the watches: one list of each kind, passes when the children are known, readiness when all is listed."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from omni_operator.api.names import JOB_LABEL
from omni_operator.cluster.cache.object_cache import ObjectCache
from omni_operator.cluster.errors import Forbidden
from omni_operator.cluster.kinds import JOBS, LEASES, PODS, RAYJOBS, Body, Key, Kind
from omni_operator.cluster.watch import object_watch
from omni_operator.cluster.watch.watch_liveness import WatchLiveness
from omni_operator.handlers.watches import CHILDREN, Watches

END = {"resourceVersion": "9", "annotations": {"k8s.io/initial-events-end": "true"}}


def body_of(kind: Kind, name: str, version: int, **parts: Any) -> Body:
    meta: Body = {"namespace": "ns", "name": name, "uid": f"{kind.plural}-{name}", "resourceVersion": str(version)}
    if kind != JOBS:
        job = name.rpartition("-")[0]
        owner = {"kind": JOBS.kind, "name": job, "uid": f"{JOBS.plural}-{job}", "controller": True}
        meta |= {"labels": {JOB_LABEL: job}, "ownerReferences": [owner]}
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": meta, **parts}


class Gates:
    """A source whose lists end when the test opens their gate; then a queue has the changes.

    Attributes:
        denied: kind and namespace of lists that are forbidden.
    """

    def __init__(self, objects: dict[Kind, list[Body]]) -> None:
        self.objects = objects
        self.requests = list[tuple[Kind, str | None]]()
        self.denied: set[tuple[Kind, str | None]] = set()
        self.gates = {kind: asyncio.Event() for kind in (*CHILDREN, LEASES)}
        self.later = {kind: asyncio.Queue[tuple[str, Body]]() for kind in self.gates}

    async def changes(
        self, kind: Kind, namespace: str | None, selector: str, since: str | None
    ) -> AsyncGenerator[tuple[str, Body]]:
        self.requests.append((kind, since))
        if (kind, namespace) in self.denied:
            raise Forbidden(f"watch {kind.plural}")
        for body in self.objects.get(kind, ()):
            if namespace in (None, body["metadata"]["namespace"]):
                yield "ADDED", body
        await self.gates[kind].wait()
        yield "BOOKMARK", {"metadata": END}
        while True:
            yield await self.later[kind].get()

    async def pages(self, kind: Kind, namespace: str | None, selector: str) -> AsyncGenerator[tuple[list[Body], str]]:
        raise AssertionError("the list is streamed")
        yield [], ""


def deliver_jobs(watches: Watches, source: Gates) -> None:
    """What `JobLists` does: deliver all jobs, and tell in which namespaces they are listed."""
    for body in source.objects.get(JOBS, ()):
        if (JOBS, body["metadata"]["namespace"]) not in source.denied:
            watches.handle(JOBS, "ADDED", body)
    for namespace in watches.namespaces or (None,):
        tell = watches.denied if (JOBS, namespace) in source.denied else watches.synced
        tell((JOBS, namespace))


def watches_of(source: Gates, *namespaces: str, **calls: Any) -> Watches:
    """Watches of these namespaces, else of all, with an empty cache and the test's own calls."""
    calls.setdefault("wake", lambda key: None)
    return Watches(
        source,
        namespaces,
        ObjectCache(),
        WatchLiveness(60.0),
        watched=lambda resource: None,
        own_namespace="system",
        **calls,
    )


@asynccontextmanager
async def running(watches: Watches) -> AsyncIterator[None]:
    """The watches run while the context is open."""
    tasks = [asyncio.create_task(run) for run in watches.runs()]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def quiet() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_new_jobs_wait_for_their_children_and_others_for_the_list_of_jobs_too() -> None:
    old = body_of(JOBS, "red", 1, spec={}, status={"attempts": 1})
    source = Gates({JOBS: [old, body_of(JOBS, "blue", 2, spec={})], RAYJOBS: [body_of(RAYJOBS, "red-a01", 3)]})
    woken = list[Key]()
    watches = watches_of(source, wake=woken.append)
    async with running(watches):
        for body in source.objects[JOBS]:
            watches.handle(JOBS, "ADDED", body)
        await quiet()
        for kind in CHILDREN:
            assert woken == [], f"{kind.plural} are not listed yet"
            source.gates[kind].set()
            await quiet()
        assert woken == [("ns", "blue")], "a new job does not wait for the list of jobs"
        watches.synced((JOBS, None))
        assert woken == [("ns", "blue"), ("ns", "red"), ("ns", "blue")]
        assert watches.cache.observed(("ns", "red"), "diffusionrljobs-red").rayjobs
        source.later[RAYJOBS].put_nowait(("DELETED", source.objects[RAYJOBS][0]))
        await quiet()
        assert woken[3:] == [("ns", "red")], "from then on each change starts a pass"

        assert sorted(kind.plural for kind, _ in source.requests) == sorted(kind.plural for kind in source.gates)


@pytest.mark.parametrize("last", [JOBS, LEASES], ids=lambda kind: kind.plural)
async def test_readiness_needs_all_lists_and_the_operators_own_write(last: Kind) -> None:
    source = Gates({})
    watches = watches_of(source)
    async with running(watches):
        write = "MODIFIED", body_of(LEASES, "canary", 12)
        for kind in CHILDREN:
            source.gates[kind].set()
        if last == JOBS:
            source.gates[LEASES].set()
            source.later[LEASES].put_nowait(write)
        else:
            deliver_jobs(watches, source)
        await quiet()
        assert not watches.liveness.ready
        if last == JOBS:
            deliver_jobs(watches, source)
        else:
            source.gates[LEASES].set()
            await quiet()
            assert not watches.liveness.ready
            source.later[LEASES].put_nowait(write)
        await quiet()
        assert watches.liveness.ready


@pytest.mark.parametrize("kind", [JOBS, PODS, RAYJOBS], ids=lambda kind: kind.plural)
async def test_a_namespace_that_may_not_be_listed_waits_alone(monkeypatch: pytest.MonkeyPatch, kind: Kind) -> None:
    """Else its owner, who deletes the RoleBinding, would stop the jobs of all others with the next restart."""
    monkeypatch.setattr(object_watch, "PAUSE_FIRST", 0.0)
    monkeypatch.setattr(object_watch, "PAUSE_MOST", 0.0)
    jobs = [body_of(JOBS, "red", 1, spec={}), body_of(JOBS, "blue", 2, spec={})]
    jobs[1]["metadata"]["namespace"] = "shut"
    source = Gates({JOBS: jobs})
    woken = list[Key]()
    source.denied = {(kind, "shut")}
    watches = watches_of(source, "ns", "shut", wake=woken.append)
    for gate in source.gates.values():
        gate.set()
    async with running(watches):
        deliver_jobs(watches, source)
        watches.handle(LEASES, "ADDED", body_of(LEASES, "canary", 12))
        await quiet()
        assert watches.liveness.ready and watches.children_listed.is_set()
        assert {name for _, name in woken} == {"red"}
        source.denied.clear()
        deliver_jobs(watches, source)
        await asyncio.wait_for(_until(lambda: ("shut", "blue") in woken), 5)


async def test_an_operator_that_may_list_no_namespace_is_not_ready() -> None:
    source = Gates({})
    source.denied = {(PODS, "ns"), (PODS, "shut")}
    watches = watches_of(source, "ns", "shut")
    for gate in source.gates.values():
        gate.set()
    async with running(watches):
        deliver_jobs(watches, source)
        watches.handle(LEASES, "ADDED", body_of(LEASES, "canary", 12))
        await quiet()
        assert not watches.liveness.ready and not watches.children_listed.is_set()


async def _until(there: Callable[[], bool]) -> None:
    while not there():
        await asyncio.sleep(0)


async def test_a_list_without_an_object_removes_it_and_an_invalid_object_stops_no_watch() -> None:
    woken = list[Key]()
    watches = watches_of(Gates({}), wake=woken.append)
    watches.children_listed.set()
    watches.handle(JOBS, "ADDED", body_of(JOBS, "red", 1))
    for name, version in (("red-a01", 3), ("red-a02", 20)):
        watches.handle(RAYJOBS, "ADDED", body_of(RAYJOBS, name, version))
    watches.handle(PODS, "ADDED", {"metadata": {"name": "broken", "labels": 7}})
    assert woken == [("ns", "red")] * 3
    woken.clear()
    watches.compare(RAYJOBS, None, {}, 10)
    assert woken == [("ns", "red")]
    (newer,) = watches.cache.observed(("ns", "red"), "diffusionrljobs-red").rayjobs
    assert newer.name == "red-a02", "it is newer than the list"


@pytest.mark.parametrize(
    ("version", "listed", "told"),
    [(7, 20, False), (8, 20, False), (6, 20, True), (6, 6, False)],
    ids=["the same", "newer", "older", "a list from before the last write"],
)
async def test_a_list_with_an_older_object_than_before_is_reported(version: int, listed: int, told: bool) -> None:
    """etcd was restored; objects that are newer than the list are what the operator has written meanwhile."""
    restored: list[str] = []
    watches = watches_of(Gates({}), restored=lambda: restored.append("restored"))
    body = body_of(RAYJOBS, "red-a01", 7)
    watches.handle(RAYJOBS, "ADDED", body)
    watches.compare(RAYJOBS, None, {body["metadata"]["uid"]: version}, listed)
    assert restored == (["restored"] if told else [])
    watches.compare(RAYJOBS, "elsewhere", {}, listed)
    assert len(restored) == told


async def test_a_rayjob_that_was_deleted_while_its_watch_was_expired_is_not_overdue() -> None:
    """No event tells of it any more, and the kubelet would restart an operator whose watches work."""
    watches = watches_of(Gates({}))
    for name, version in (("red-a01", 7), ("blue-a01", 30)):
        watches.liveness.expect(RAYJOBS, body_of(RAYJOBS, name, version), 0.0)
    watches.compare(RAYJOBS, "elsewhere", {}, 20)
    assert len(watches.liveness.overdue(61.0)) == 2
    watches.compare(RAYJOBS, None, {}, 20)
    (overdue,) = watches.liveness.overdue(61.0)  # of what is newer than the list
    assert overdue == "rayjobs ns/blue-a01: written 61 s ago, no watch event since"
