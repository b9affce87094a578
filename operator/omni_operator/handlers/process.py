"""The process: what runs beside kopf's watches, from the start to a graceful stop."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import kopf
from prometheus_client import disable_created_metrics

from omni_operator.api.names import MANAGED_BY_LABEL, MANAGER, SELECTOR
from omni_operator.cluster.client import ApiServer
from omni_operator.cluster.credentials import Access, in_pod_server
from omni_operator.cluster.errors import ClusterError, KindAbsent
from omni_operator.cluster.kinds import JOBS, LEASES, RAYJOBS, Body, Key, Kind
from omni_operator.cluster.proof import Proof
from omni_operator.cluster.protocol import Cluster
from omni_operator.cluster.store import Store
from omni_operator.metrics import Jobs, Metrics
from omni_operator.reconcile import Reconciler
from omni_operator.reports import BODY_LIMIT, Book, Endpoint, Gatekeeper
from omni_operator.settings import Settings

from .http import probes, serving
from .watching import CHILDREN, Watches, configure
from .workers import Workers

LEASE = "omni-operator-canary"
LIST_PAUSE, AFTER_START = 5.0, 30.0
LOOK_FIRST, LOOK_MOST, SETTLE = 5.0, 60.0, 2.0
log = logging.getLogger(__name__)


def utc_now() -> datetime:
    """The wall clock, which statuses are written by."""
    return datetime.now(UTC)


@dataclass(slots=True)
class Canary:
    """Writes the operator's own Lease, for the watch to tell of."""

    cluster: Cluster
    proof: Proof
    settings: Settings

    async def run(self) -> None:
        while True:
            await self.beat(utc_now())
            await asyncio.sleep(self.settings.canary_seconds)

    async def beat(self, now: datetime) -> None:
        """One write. One that fails proves nothing, and is no reason to stop."""
        body: Body = {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": {
                "name": LEASE, "namespace": self.settings.lease_namespace, "labels": {MANAGED_BY_LABEL: MANAGER},
            },
            "spec": {
                "holderIdentity": self.settings.instance,
                "renewTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            },
        }  # fmt: skip
        try:
            answer = await self.cluster.apply(body)
        except ClusterError as error:
            log.warning("the Lease cannot be written: %s", error)
        else:
            self.proof.written(LEASES, answer, time.monotonic())


@dataclass(slots=True)
class Lists:
    """Fills the store at the start, and finds, now and then, what was deleted while no watch told of it."""

    cluster: Cluster
    store: Store
    settings: Settings
    wake: Callable[[Key], None]

    async def fill(self) -> None:
        """Read everything once, jobs last: whoever sees a job sees its children.

        Kinds that are not served have no objects; while anything else goes wrong it is tried again.
        """
        for kind in (*CHILDREN, JOBS):
            while True:
                try:
                    await self._fill(kind)
                except KindAbsent:
                    break
                except ClusterError as error:
                    log.warning("%s cannot be listed; again in %.0f s: %s", kind.plural, LIST_PAUSE, error)
                    await asyncio.sleep(LIST_PAUSE)
                else:
                    break

    async def _fill(self, kind: Kind) -> None:
        for namespace in self.settings.namespaces or (None,):
            async for page in self.cluster.pages(kind, namespace, _selector(kind)):
                for body in page:
                    self.store.put(kind, body)

    async def run(self) -> None:
        pause = AFTER_START  # between our first list and kopf's something may have been deleted
        while True:
            await asyncio.sleep(pause)
            for kind in (JOBS, *CHILDREN):
                await self.prune(kind)
            pause = self.settings.prune_seconds * random.uniform(0.9, 1.1)

    async def prune(self, kind: Kind) -> None:
        """Compare what is remembered of a kind with what there is."""
        try:
            for namespace in self.settings.namespaces or (None,):
                listing = await self.cluster.listing(kind, namespace, _selector(kind))
                for key in self.store.prune(kind, listing.items, listing.version, namespace):
                    log.info("%s/%s: the watch had missed a deletion among %s", *key, kind.plural)
                    self.wake(key)
        except KindAbsent:
            return  # nothing of it is remembered either
        except ClusterError as error:
            log.warning("%s cannot be listed: %s", kind.plural, error)


@dataclass(slots=True)
class Arrivals:
    """Kinds that are not served yet, as where KubeRay is installed after the operator: kopf watches only what it finds
    at its start, so it has to start anew for them.

    Attributes:
        came: set once one of them is served.
    """

    cluster: Cluster
    came: asyncio.Event = field(default_factory=asyncio.Event)
    absent: set[Kind] = field(default_factory=set)

    async def look(self) -> None:
        """See what is served before kopf looks. Jobs are waited for: without them there is nothing to do."""
        while not await self._serves(JOBS):
            log.warning("there are no jobs here yet: the CRD is missing (crds/)")
            await asyncio.sleep(LOOK_FIRST)
        self.absent = {kind for kind in CHILDREN if not await self._serves(kind)}

    async def run(self) -> None:
        pause = LOOK_FIRST
        while True:
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, LOOK_MOST)
            if found := {kind for kind in self.absent if await self._serves(kind)}:
                await asyncio.sleep(SETTLE)  # kinds of one project come together
                log.info("%s can be watched now: starting anew", ", ".join(sorted(kind.plural for kind in found)))
                self.came.set()

    async def _serves(self, kind: Kind) -> bool:
        try:
            return await self.cluster.serves(kind)
        except ClusterError as error:
            log.warning("nobody says whether there are %s: %s", kind.plural, error)
            return False


async def run(settings: Settings, access: Access, version: str) -> bool:
    """Run the operator until it is told to stop, or has to start anew; whether it has to.

    Raises:
        OSError: a port is taken.
    """
    disable_created_metrics()  # type: ignore[no-untyped-call]
    metrics, store, book = Metrics(), Store(), Book()
    metrics.registry.register(Jobs(store, settings.jobs_shown))
    proof = Proof(settings.canary_deadline_seconds)
    async with ApiServer(access, metrics.requested, version=version) as cluster:
        reconciler = Reconciler(
            cluster=cluster, store=store, reports=book, settings=settings.cluster, clock=utc_now,
            instance=settings.instance, timeouts=settings.timeouts, failed=metrics.failed,
            made=lambda body: proof.written(RAYJOBS, body, time.monotonic()),
        )  # fmt: skip
        workers = Workers(
            reconciler.visit, urgent=lambda key: _unseen(store, key), measured=metrics.passed, clock=utc_now,
            resync=lambda: settings.resync_seconds * random.uniform(0.9, 1.1), passes=settings.passes,
        )  # fmt: skip
        metrics.follow(lambda: workers.depth, lambda: len(proof.late(time.monotonic())))
        endpoint = Endpoint(book, Gatekeeper(cluster, store, utc_now), store, utc_now, workers.wake, metrics.reported)
        lists = Lists(cluster, store, settings, workers.wake)
        arrivals = Arrivals(cluster)
        loops = [Canary(cluster, proof, settings).run(), lists.run(), arrivals.run()]
        async with (
            serving(probes(proof, metrics, time.monotonic), settings.http_port),
            serving(endpoint.routes(), settings.reports_port, BODY_LIMIT),
        ):
            await arrivals.look()
            await lists.fill()
            watches = Watches(store, proof, workers.wake, metrics.watched)
            await _together(_watch(settings, arrivals.came, watches, workers), loops)
    return arrivals.came.is_set()


def _selector(kind: Kind) -> str:
    return "" if kind == JOBS else SELECTOR


def _unseen(store: Store, key: Key) -> bool:
    """Whether nobody has looked at a job yet: then it goes before those that are looked at again."""
    body = store.job(key)
    return body is not None and not body.get("status")


async def _watch(settings: Settings, enough: asyncio.Event, watches: Watches, workers: Workers) -> None:
    """kopf's part; ends when the process is told to stop or has had enough, after the workers have stopped."""
    registry, kopf_settings = kopf.OperatorRegistry(), kopf.OperatorSettings()
    configure(kopf_settings, settings)
    watches.register(registry)

    @kopf.on.login(registry=registry)
    def login(**kwargs: Any) -> kopf.ConnectionInfo | None:
        if found := kopf.login_with_kubeconfig(**kwargs):
            return found
        account = kopf.login_with_service_account(**kwargs)  # by name, which needs the cluster's name service
        return account and replace(account, server=in_pod_server(os.environ))

    @kopf.on.cleanup(registry=registry)
    async def stop(**_: object) -> None:
        await workers.stop(settings.stop_seconds)

    await kopf.operator(
        registry=registry, settings=kopf_settings, standalone=True, clusterwide=not settings.namespaces,
        namespaces=settings.namespaces, stop_flag=enough,
    )  # fmt: skip


async def _together(first: Coroutine[Any, Any, None], others: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run until `first` ends; whatever breaks ends all of it, and is raised."""
    tasks = [asyncio.create_task(part) for part in (first, *others)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            raise result
