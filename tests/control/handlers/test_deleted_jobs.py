"""Jobs that are gone: nothing that the operator keeps refers to them any more, whatever store it is in."""

import asyncio
import gc
import re
from datetime import UTC, datetime, timedelta
from types import BuiltinFunctionType, FunctionType, ModuleType

import pytest

from control.api.job_documents import SMALLEST
from e2e.fake_cluster import FakeCluster
from omni_operator.api.names import report_audience
from omni_operator.cluster.cache.object_cache import ObjectCache
from omni_operator.cluster.kinds import JOBS, PODS, RAYCLUSTERS, RAYJOBS, Key
from omni_operator.cluster.protocol import Identity
from omni_operator.cluster.watch.watch_liveness import WatchLiveness
from omni_operator.handlers.job_workers import STALE_ENTRIES, JobWorkers
from omni_operator.handlers.watches import Watches
from omni_operator.plan import ClusterSettings
from omni_operator.reconcile.reconciler import Reconciler
from omni_operator.reports.authorizer import TOKEN_LIFETIME, Claims, ReportAuthorizer
from omni_operator.reports.endpoint import ReportEndpoint, ReportStore
from omni_operator.status.observed.trainer_report import parse_event

pytestmark = pytest.mark.slow  # passes over hundreds of jobs

JOBS_DELETED = 500
SETTLED = 120.0
NAMESPACE = "team-a"
USER = f"system:serviceaccount:{NAMESPACE}:default"
# What is no store of the operator: code, the test's API server, the event loop.
OUTSIDE = (type, ModuleType, FunctionType, BuiltinFunctionType, FakeCluster, asyncio.AbstractEventLoop)


def names_reachable(*roots: object) -> set[str]:
    """Names of jobs in all texts that these objects refer to, at any depth."""
    seen = set[int]()
    waiting = list(roots)
    names = set[str]()
    while waiting:
        value = waiting.pop()
        if id(value) in seen or isinstance(value, OUTSIDE):
            continue
        seen.add(id(value))
        if isinstance(value, str):
            names |= set(re.findall(r"job-[0-9]+", value))
        waiting += gc.get_referents(value)
    return names


class Operator:
    """All stores of the operator's process, on an API server in memory."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self._seen = 0
        self.cluster = FakeCluster(lambda: self.now)
        self.cache = ObjectCache()
        self.reports = ReportStore()
        self.reconciler = Reconciler(
            cluster=self.cluster,
            cache=self.cache,
            reports=self.reports,
            clock=lambda: self.now,
            instance="test",
            settings=ClusterSettings(image="rollout:1"),
        )
        self.workers = JobWorkers(
            self.reconciler.reconcile,
            rank=lambda key: 1,
            revision=self.cache.summary,
            resync=lambda: 3600.0,
            measured=lambda result, seconds: None,
            clock=lambda: self.now,
            passes=16,
        )
        wake = self.workers.wake
        # It keeps the last events of a bounded number of objects (test_object_cache.py).
        liveness = WatchLiveness(60.0)
        self.watches = Watches(self.cluster, (), self.cache, liveness, wake, lambda plural: None, "system")
        self.watches.children_listed.set()
        authorizer = ReportAuthorizer(self.cluster, self.cache, lambda: self.now)
        self.endpoint = ReportEndpoint(
            self.reports, authorizer, self.cache, lambda: self.now, wake, lambda result: None
        )

    async def settle(self) -> None:
        """Deliver events and make passes until nothing is left to do."""
        self.cluster.collect()
        async with asyncio.timeout(SETTLED):
            await self._settle()

    async def _settle(self) -> None:
        while self._seen < len(self.cluster.events) or self.workers.depth or self.workers.tasks:
            pending = self.cluster.events[self._seen :]
            self._seen = len(self.cluster.events)
            for change, kind, body in pending:
                if kind.plural != "events":
                    self.watches.handle(kind, change, body)
            await asyncio.sleep(0)

    def submit(self, key: Key) -> str:
        """A new job; its uid."""
        stored = self.cluster.make({**SMALLEST, "metadata": {"namespace": key[0], "name": key[1]}})
        return str(stored["metadata"]["uid"])

    def run(self, key: Key) -> tuple[str, str]:
        """KubeRay makes the cluster of the first attempt, with one pod; name and uid of that."""
        parent = self.cluster.get(RAYJOBS, key[0], f"{key[1]}-a01")
        for kind, name in ((RAYCLUSTERS, f"{key[1]}-a01-x1"), (PODS, f"{key[1]}-a01-x1-trainer")):
            parent = self.cluster.make_owned(kind, name, parent, status={"phase": "Running"})
        return parent["metadata"]["name"], parent["metadata"]["uid"]

    async def report(self, key: Key, uid: str, pod: tuple[str, str]) -> None:
        """The trainer reports, and is asked for a checkpoint."""
        audience = report_audience(*key)
        token = f"token of {pod[1]}"
        self.cluster.tokens[token, audience] = Identity(USER, *pod)
        attempt = await self.endpoint.authorizer.authorize(token, Claims(key, pod), uid, "10.0.0.1")
        self.endpoint._posts.count(key)
        self.reports.take(key, uid, attempt, parse_event(b'{"event": "step", "step": 3}'), self.now)
        self.reports.ask_checkpoint(key, self.now)
        self.workers.wake(key)

    def names(self) -> set[str]:
        """Names of jobs that anything refers to."""
        self.watches.liveness = WatchLiveness(60.0)
        return names_reachable(self.watches, self.workers, self.reconciler, self.endpoint)


async def test_nothing_refers_to_a_deleted_job() -> None:
    operator = Operator()
    keys = list[Key]((NAMESPACE, f"job-{number}") for number in range(JOBS_DELETED))

    async def run(keys: list[Key]) -> None:
        uids = {key: operator.submit(key) for key in keys}
        await operator.settle()
        pods = {key: operator.run(key) for key in keys}
        await operator.settle()
        for key in keys:
            await operator.report(key, uids[key], pods[key])
        await operator.settle()

    await run(keys)
    assert operator.names() == {name for _, name in keys}
    stores = (operator.cache, operator.reports, operator.endpoint.authorizer._valid, operator.endpoint._posts)
    assert [len(names_reachable(store)) for store in stores] == [JOBS_DELETED] * len(stores), "what each of them keeps"
    for key in keys:
        operator.cluster.remove(JOBS, *key)
    operator.now += TOKEN_LIFETIME + timedelta(seconds=1)
    await operator.settle()
    await run([(NAMESPACE, "another")])
    assert len(operator.names()) <= STALE_ENTRIES, "entries of the queue's heap, which is rebuilt when there are more"
    await operator.workers.stop(10)
    assert operator.names() == set()
