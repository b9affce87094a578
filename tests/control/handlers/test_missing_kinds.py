"""Background tasks: kinds that are installed after the operator, and deletions that watches missed."""

import asyncio
from datetime import UTC, datetime

import pytest
from ruamel.yaml import YAML

from e2e.fake_cluster import FakeCluster
from omni_operator.api.crd import definition
from omni_operator.cluster.cache.object_cache import ObjectCache
from omni_operator.cluster.errors import Forbidden, Unavailable
from omni_operator.cluster.kinds import JOBS, LEASES, POD_MONITORS, RAYCLUSTERS, RAYJOBS, Key, Kind
from omni_operator.cluster.protocol import Listing
from omni_operator.cluster.server_clock import utc_now
from omni_operator.cluster.watch.watch_liveness import WatchLiveness
from omni_operator.handlers import background
from omni_operator.handlers.background import CacheCleanup, LeaseHeartbeat, MissingKinds
from omni_operator.settings import Settings


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    for name in ("CHECK_FIRST", "CHECK_MOST", "SETTLE", "RETRY_SECONDS"):
        monkeypatch.setattr(background, name, 0.001)
    return FakeCluster(lambda: datetime(2026, 1, 1, tzinfo=UTC))


async def test_a_kind_that_is_installed_later_restarts_the_watches(cluster: FakeCluster) -> None:
    cluster.absent = {RAYJOBS, RAYCLUSTERS, POD_MONITORS}
    missing = MissingKinds(cluster)
    await missing.await_jobs()
    assert missing.absent == {RAYJOBS, RAYCLUSTERS, POD_MONITORS}
    checking = asyncio.create_task(missing.run())
    while cluster.log.count(("get", "rayclusters")) < 3:
        await asyncio.sleep(0)
    assert not missing.served.is_set()
    cluster.absent = {POD_MONITORS}
    await asyncio.wait_for(missing.served.wait(), 30)
    checking.cancel()


async def test_startup_waits_for_the_custom_resource(cluster: FakeCluster) -> None:
    cluster.absent = {JOBS}
    waiting = asyncio.create_task(MissingKinds(cluster).await_jobs())
    while cluster.log.count(("get", "diffusionrljobs")) < 3:
        await asyncio.sleep(0)
    assert not waiting.done()
    cluster.absent = set()
    await asyncio.wait_for(waiting, 30)


async def test_a_definition_without_fields_of_the_status_is_named_at_the_start(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    (version,) = YAML(typ="safe").load(definition.text())["spec"]["versions"]
    cluster.schemas[JOBS] = schema = version["schema"]["openAPIV3Schema"]
    await MissingKinds(cluster).await_jobs()
    assert caplog.records == []
    status = schema["properties"]["status"]["properties"]
    del status["warnings"], status["failures"]["items"]["properties"]["counted"]
    await MissingKinds(cluster).await_jobs()
    (record,) = caplog.records
    assert record.levelname == "ERROR"
    assert "it lacks status.failures.counted, status.warnings; apply crds/ of the operator's version" in record.message


async def test_failed_requests_at_the_start_are_repeated_and_make_no_kind_absent(cluster: FakeCluster) -> None:
    cluster.absent = {POD_MONITORS}
    answered = cluster.serves
    failures = dict.fromkeys((JOBS, RAYJOBS, RAYCLUSTERS), 2)

    async def fails_twice(kind: Kind) -> bool:
        if failures.get(kind):
            failures[kind] -= 1
            raise Unavailable("500")
        return await answered(kind)

    cluster.serves = fails_twice
    missing = MissingKinds(cluster)
    await asyncio.wait_for(missing.await_jobs(), 30)
    assert missing.absent == {POD_MONITORS}
    assert not any(failures.values())


async def test_a_failed_first_heartbeat_is_repeated_soon(cluster: FakeCluster) -> None:
    failures = [Unavailable("500"), Unavailable("500")]
    cluster.failures = lambda verb, kind, name: failures.pop() if failures else None
    liveness = WatchLiveness(60.0)
    beating = asyncio.create_task(LeaseHeartbeat(cluster, liveness, Settings(canary_seconds=3600.0), utc_now).run())
    while not cluster.all(LEASES):
        await asyncio.sleep(0)
    beating.cancel()
    assert cluster.log == [("apply", "leases")] * 3


async def test_a_namespace_that_cannot_be_listed_keeps_no_missed_deletion_of_another_one(cluster: FakeCluster) -> None:
    cache = ObjectCache()
    meta = {"namespace": "b", "name": "red", "uid": "u", "resourceVersion": "1", "generation": 1}
    cache.put(JOBS, {"metadata": meta, "spec": {}})
    woken: list[Key] = []
    listed = cluster.list_metadata

    async def denied_in_a(kind: Kind, namespace: str | None, selector: str) -> Listing:
        if namespace == "a":
            raise Forbidden("no right there")
        return await listed(kind, namespace, selector)

    cluster.list_metadata = denied_in_a
    await CacheCleanup(cluster, cache, Settings(namespaces=("a", "b")), woken.append).prune(JOBS)
    assert (woken, list(cache.jobs())) == ([("b", "red")], [])
