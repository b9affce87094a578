"""Background tasks beside kopf's watches: the Lease that is written to test them, lists, and kinds that come later."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from omni_operator.api.names import MANAGED_BY_LABEL, MANAGER, SELECTOR
from omni_operator.cluster.errors import ClusterError, KindAbsent
from omni_operator.cluster.kinds import JOBS, LEASES, Body, Key, Kind
from omni_operator.cluster.object_cache import ObjectCache
from omni_operator.cluster.protocol import Cluster
from omni_operator.cluster.watch_liveness import WatchLiveness
from omni_operator.settings import Settings

from .watches import CHILDREN

LEASE = "omni-operator-canary"
LIST_PAUSE, AFTER_START = 5.0, 30.0
LOOK_FIRST, LOOK_MOST, SETTLE = 5.0, 60.0, 2.0
log = logging.getLogger(__name__)


def utc_now() -> datetime:
    """The wall clock, which statuses are written by."""
    return datetime.now(UTC)


@dataclass(slots=True)
class LeaseHeartbeat:
    """Writes the operator's own Lease, for the watch to tell of."""

    cluster: Cluster
    liveness: WatchLiveness
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
            self.liveness.expect(LEASES, answer, time.monotonic())


@dataclass(slots=True)
class CacheSync:
    """Fills the cache at the start, and finds, now and then, what was deleted while no watch told of it."""

    cluster: Cluster
    cache: ObjectCache
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
                    self.cache.put(kind, body)

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
                for key in self.cache.prune(kind, listing.items, listing.version, namespace):
                    log.info("%s/%s: the watch had missed a deletion among %s", *key, kind.plural)
                    self.wake(key)
        except KindAbsent:
            return  # nothing of it is remembered either
        except ClusterError as error:
            log.warning("%s cannot be listed: %s", kind.plural, error)


@dataclass(slots=True)
class MissingKinds:
    """Kinds that are not served yet, as where KubeRay is installed after the operator: kopf watches only what it finds
    at its start, so it has to start anew for them.

    Attributes:
        served: set once one of them is served.
    """

    cluster: Cluster
    served: asyncio.Event = field(default_factory=asyncio.Event)
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
                self.served.set()

    async def _serves(self, kind: Kind) -> bool:
        try:
            return await self.cluster.serves(kind)
        except ClusterError as error:
            log.warning("nobody says whether there are %s: %s", kind.plural, error)
            return False


def _selector(kind: Kind) -> str:
    return "" if kind == JOBS else SELECTOR
