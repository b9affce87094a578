"""Background tasks next to the watches: the Lease heartbeat, periodic lists, kinds installed later."""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from omni_operator.api.crd.definition_fields import find_missing
from omni_operator.api.names import MANAGED_BY_LABEL, MANAGER
from omni_operator.api.status import Status
from omni_operator.cluster.cache.object_cache import ObjectCache
from omni_operator.cluster.errors import ClusterError, KindAbsent
from omni_operator.cluster.kinds import JOBS, LEASES, Body, Key, Kind
from omni_operator.cluster.protocol import Cluster
from omni_operator.cluster.watch.watch_liveness import WatchLiveness
from omni_operator.settings import Settings

from .watches import CHILDREN, selector_of

LEASE = "omni-operator-canary"
CHECK_FIRST = 5.0
CHECK_MOST = 60.0
SETTLE = 2.0
RETRY_SECONDS = 0.5  # after a failed request at the start
log = logging.getLogger(__name__)


@dataclass(slots=True)
class LeaseHeartbeat:
    """Writes the canary Lease periodically; the watch must deliver each write. Replicas write the same one."""

    cluster: Cluster
    liveness: WatchLiveness
    settings: Settings
    clock: Callable[[], datetime]

    async def run(self) -> None:
        written = False
        while True:
            written = await self.beat(self.clock()) or written
            # The operator is not ready before its first write.
            await asyncio.sleep(self.settings.canary_seconds if written else RETRY_SECONDS)

    async def beat(self, now: datetime) -> bool:
        """Write it once, and return whether that succeeded. A failed write is logged and not tracked."""
        body: Body = {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": {
                "name": LEASE,
                "namespace": self.settings.namespace,
                "labels": {MANAGED_BY_LABEL: MANAGER},
            },
            "spec": {
                "holderIdentity": self.settings.instance,
                "renewTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            },
        }
        try:
            answer = await self.cluster.apply(body)
        except ClusterError as error:
            log.warning("Lease %s/%s: write failed, retrying: %s", self.settings.namespace, LEASE, error)
            return False
        self.liveness.expect(LEASES, answer, time.monotonic())
        return True


@dataclass(slots=True)
class CacheCleanup:
    """Periodically removes cached objects whose deletion the watches missed."""

    cluster: Cluster
    cache: ObjectCache
    settings: Settings
    wake: Callable[[Key], None]

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self.settings.prune_seconds * random.uniform(0.9, 1.1))
            for kind in (JOBS, *CHILDREN):
                await self.prune(kind)

    async def prune(self, kind: Kind) -> None:
        """Remove cached objects of a kind that the API server no longer has. A failed list is repeated next time."""
        for namespace in self.settings.namespaces or (None,):
            try:
                listing = await self.cluster.list_metadata(kind, namespace, selector_of(kind))
            except KindAbsent:
                return  # nothing of it is cached either
            except ClusterError as error:
                log.warning("%s: list failed, retry at the next interval: %s", kind.plural, error)
                continue
            alive = {str(meta["uid"]) for meta in listing.items}
            for key in self.cache.remove_missing(kind, alive, listing.version, namespace):
                log.info("%s/%s: the watch missed a deletion of %s; reconciling", *key, kind.plural)
                self.wake(key)


@dataclass(slots=True)
class MissingKinds:
    """Kinds that are not served yet, for example because KubeRay is installed after the operator.

    Everything starts again when one is installed, so that all kinds of a project are watched from the same time on.

    Attributes:
        served: set when one of them is served.
    """

    cluster: Cluster
    served: asyncio.Event = field(default_factory=asyncio.Event)
    absent: set[Kind] = field(default_factory=set)

    async def await_jobs(self) -> None:
        """Wait until DiffusionRLJobs are served, then record which other kinds are not."""
        while not await self._answer(JOBS):
            log.warning("DiffusionRLJobs are not served: install the CRD (crds/); next check in %.0f s", CHECK_FIRST)
            await asyncio.sleep(CHECK_FIRST)
        await self._check_definition()
        answers = await asyncio.gather(*(self._answer(kind) for kind in CHILDREN))
        self.absent = {kind for kind, served in zip(CHILDREN, answers, strict=True) if not served}

    async def _check_definition(self) -> None:
        """Say if the API server would refuse the status of every job. Nothing else depends on it."""
        try:
            schema = await self.cluster.read_schema(JOBS)
        except ClusterError as error:
            log.warning("the definition of DiffusionRLJobs (CRD) was not read: %s", error)
            return
        status = ((schema or {}).get("properties") or {}).get("status")
        if status and (missing := tuple(find_missing(Status, status, "status"))):
            log.error(
                "the definition of DiffusionRLJobs (CRD) is older than this operator: it lacks %s; apply crds/ of the "
                "operator's version (docs/operate/install.md), or the API server refuses the status of jobs",
                ", ".join(missing),
            )

    async def run(self) -> None:
        pause = CHECK_FIRST
        while True:
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, CHECK_MOST)
            if served := {kind for kind in self.absent if await self._serves(kind)}:
                await asyncio.sleep(SETTLE)  # the kinds of one project are installed together
                log.info("%s: now served; restarting the watches", ", ".join(sorted(kind.plural for kind in served)))
                self.served.set()

    async def _answer(self, kind: Kind) -> bool:
        """Whether a kind is served; a failed request says nothing about it and is repeated."""
        while (served := await self._serves(kind)) is None:
            await asyncio.sleep(RETRY_SECONDS)
        return served

    async def _serves(self, kind: Kind) -> bool | None:
        try:
            return await self.cluster.serves(kind)
        except ClusterError as error:
            log.warning("%s: discovery failed: %s", kind.plural, error)
            return None
