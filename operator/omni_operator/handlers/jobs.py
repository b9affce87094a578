"""DiffusionRLJobs through kopf: each event updates the cache and wakes the worker of the job, which runs the one pass.

    kopf's watch ---- event ----> Watches.handle ------> cache, JobWorkers.wake ------> pass
    list of metadata (JobLists) -> Watches.handle ------> jobs that no event reported
                                -> Watches.compare -----> jobs whose deletion no event reported
                                -> Watches.synced ------> passes over jobs that are not new begin

kopf tells its handlers neither when its list is complete nor which objects disappeared while a version was expired, and
it does not repeat a list that was interrupted. A list of metadata says what is missing: at the start, and again after
kopf or a watch of children had to list again.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, cast

import kopf
from typing_extensions import override

from omni_operator.cluster.errors import ClusterError, Forbidden, KindAbsent, Refused
from omni_operator.cluster.kinds import JOBS, LEASES, Body, Meta, version_of
from omni_operator.cluster.protocol import Cluster, Listing
from omni_operator.cluster.watch.object_watch import WatchSource
from omni_operator.cluster.watch.watch_client import SILENCE_SECONDS, WATCH_SECONDS

from .watches import Watches

IDLE_SECONDS = 0.2  # after which kopf drops the task of a job, and with it the job's last event
PAGE = 25  # jobs, where the API server streams no lists; one may have 1.5 MB
FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0
PAUSE_ABSENT = 15.0
POLL_SECONDS = 0.1
LIST_AGAIN_SECONDS = 3.0  # without an event while listed jobs are missing: they may be deleted, or kopf missed them
SETTLE_SECONDS = 1.0  # of events after a new list, before the jobs are compared with the API server's
log = logging.getLogger(__name__)


class EndlessBackoffs:
    """Pauses between kopf's requests: it ends when they do, and one namespace without rights would stop all others."""

    def __iter__(self) -> Iterator[float]:
        pause = FIRST_PAUSE
        while True:
            yield pause * random.uniform(0.5, 1.0)
            pause = min(pause * 2, LONGEST_PAUSE)


class NoDiffs(kopf.DiffBaseStorage):
    """Stores nothing: no handler compares a job with an earlier one, and kopf would copy the job at each event."""

    @override
    def build(self, *, body: kopf.Body, extra_fields: Any = None) -> kopf.BodyEssence:
        return kopf.BodyEssence()

    @override
    def fetch(self, *, body: kopf.Body) -> kopf.BodyEssence | None:
        return None

    @override
    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        return None


def new_kopf_settings() -> kopf.OperatorSettings:
    """kopf's settings that are read before its startup handlers run."""
    settings = kopf.OperatorSettings()
    settings.scanning.disabled = True  # it needs cluster-wide permissions
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 10
    return settings


def configure_watches(settings: kopf.OperatorSettings, *, streams_lists: bool) -> None:
    """Let kopf watch as the operator's own watches do."""
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)  # a line for each event that is handled
    settings.watching.initial_streaming = streams_lists
    settings.watching.chunk_size = PAGE
    settings.watching.inactivity_timeout = SILENCE_SECONDS
    settings.watching.server_timeout = random.randint(*WATCH_SECONDS)
    settings.queueing.idle_timeout = IDLE_SECONDS
    settings.networking.error_backoffs = EndlessBackoffs()
    settings.persistence.diffbase_storage = NoDiffs()


def register_jobs(registry: kopf.OperatorRegistry, changed: Callable[[str | None, Body], None]) -> None:
    """Register the handler of jobs.

    Args:
        changed: called with type and object of each event; the type is None for an object of a list.
    """

    @kopf.on.event(JOBS.group, JOBS.version, JOBS.plural, registry=registry)
    async def job_changed(event: kopf.RawEvent, **_: Any) -> None:
        changed(event["type"], cast(Body, event["object"]))


async def streams_lists(source: WatchSource, namespace: str) -> bool:
    """Whether the API server streams lists: servers before 1.32, and those without the feature WatchList, do not."""
    while True:
        try:
            async with aclosing(source.changes(LEASES, namespace, "", None)) as changes:
                async for _ in changes:
                    break
            return True
        except Refused as error:
            if not isinstance(error, Forbidden):
                return False
            log.error("the operator may not watch Leases in namespace %s: %s", namespace, error)
        except ClusterError as error:
            log.warning("whether the API server streams lists is not known yet: %s", error)
        await asyncio.sleep(FIRST_PAUSE)


@dataclass(slots=True)
class JobLists:
    """Compares the jobs that kopf delivered with lists of the API server.

    Attributes:
        namespaces: namespaces to watch; empty: all.
    """

    cluster: Cluster
    watches: Watches
    namespaces: tuple[str, ...]
    _unlisted: set[str | None] = field(default_factory=set)  # namespaces that were not compared yet
    _expired: dict[str | None, asyncio.Event] = field(default_factory=dict)
    _events: int = 0  # that kopf delivered so far

    def __post_init__(self) -> None:
        self._unlisted = set(self.namespaces or (None,))
        self._expired = {namespace: asyncio.Event() for namespace in self._unlisted}

    def changed(self, change: str | None, body: Body) -> None:
        """Handle an event of kopf; `change` is None for an object of a list."""
        self._events += 1
        if change is None:
            self.expire(body["metadata"].get("namespace") if self.namespaces else None)
        self.watches.handle(JOBS, change or "ADDED", body)

    def expire(self, namespace: str | None) -> None:
        """Compare the jobs of a namespace, where something was listed again: events may have been missed."""
        if namespace not in self._unlisted:
            self._expired[namespace].set()

    async def run(self) -> None:
        """Compare all namespaces, and those where something is listed again, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for namespace in self.namespaces or (None,):
                tasks.create_task(self._follow(namespace))

    async def _follow(self, namespace: str | None) -> None:
        pause = FIRST_PAUSE
        while True:
            try:
                await self._compare(namespace)
            except KindAbsent:
                self.watches.synced((JOBS, namespace))  # there are none
                await asyncio.sleep(PAUSE_ABSENT)
                continue
            except ClusterError as error:
                if isinstance(error, Forbidden):
                    self.watches.denied((JOBS, namespace))
                where = namespace or "all namespaces"
                log.warning("%s in %s: list failed, retry in %.1f s: %s", JOBS.plural, where, pause, error)
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
                continue
            pause = FIRST_PAUSE
            await self._expired[namespace].wait()
            await asyncio.sleep(SETTLE_SECONDS)
            self._expired[namespace].clear()

    async def _compare(self, namespace: str | None) -> None:
        """Wait until kopf has delivered what a list has, read what it does not deliver, and remove what is gone."""
        listing = await self.cluster.list_metadata(JOBS, namespace, "")
        while not await self._are_delivered(listing):
            listing = await self.cluster.list_metadata(JOBS, namespace, "")
            if self._events:
                # kopf continues a list that was interrupted from the version of its last object.
                for item in self._undelivered(listing.items):
                    if body := await self.cluster.read(JOBS, str(item["namespace"]), str(item["name"])):
                        self.watches.handle(JOBS, "ADDED", body)
                break
        alive = {str(item["uid"]): version_of(item) for item in listing.items}
        self.watches.compare(JOBS, namespace, alive, listing.version)
        self._unlisted.discard(namespace)
        self.watches.synced((JOBS, namespace))

    async def _are_delivered(self, listing: Listing) -> bool:
        """Wait until kopf has delivered the listed jobs. Return False if it pauses before."""
        missing = self._undelivered(listing.items)
        handled = self._events
        idle = 0.0
        while missing:
            if idle >= LIST_AGAIN_SECONDS:
                return False
            await asyncio.sleep(POLL_SECONDS)
            idle = idle + POLL_SECONDS if self._events == handled else 0.0
            handled = self._events
            missing = self._undelivered(missing)
        return True

    def _undelivered(self, items: Sequence[Meta]) -> list[Meta]:
        """The listed jobs of which the cache has no version, or an older one."""
        return [item for item in items if self._cached_version(item) < version_of(item)]

    def _cached_version(self, item: Meta) -> int:
        body = self.watches.cache.job((str(item["namespace"]), str(item["name"])))
        return version_of(body["metadata"]) if body else -1
