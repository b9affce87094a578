"""Leader election through a Lease of coordination.k8s.io: of several replicas, one makes passes and writes.

Invariants:
- The leader writes until `LeaseTimes.writes` after it began a renewal that succeeded, by its own clock. Others take
  over `LeaseTimes.duration` after they saw that renewal, by theirs, and only if the Lease has not changed since. No
  clock is compared with another one.
- Every change of the Lease requires the version that was seen, so of two candidates one wins.
- A leader that stops has ended its passes before it releases the Lease.
- Versions of a cluster's objects only grow, unless etcd is restored from an older snapshot. The Lease shows that first:
  its holder's next renewal is a conflict, and the Lease that is read then has an older version than one before.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime

from omni_operator.api.names import MANAGED_BY_LABEL, MANAGER
from omni_operator.cluster.errors import ClusterError, Conflict, NotFound
from omni_operator.cluster.event_writer import EventWriter
from omni_operator.cluster.kinds import LEASES, Body, version_of
from omni_operator.cluster.protocol import Cluster
from omni_operator.status.report.events import Event

from .write_fence import WriteFence

REPORTS_ANNOTATION = "diffusionrl.io/reports-url"
# after a lost race; after a failed request
SOON = 0.1
RETRY_SECONDS = 1.0
LONGEST_SECONDS = 60  # largest allowed LEASE_SECONDS, so no replica has more
MOST_TRANSITIONS = 2**31 - 1  # that the API server takes
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """Times of the election, in seconds.

    Attributes:
        duration: a whole number; another replica waits this long after the last renewal that it saw.
    """

    duration: int

    @property
    def renewal(self) -> float:
        """Interval between renewals."""
        return self.duration / 5

    @property
    def writes(self) -> float:
        """How long a leader writes after it began a renewal. The rest is for what is on the way to the API server."""
        return self.duration * 0.7

    @property
    def request(self) -> float:
        """Limit of one request of the Lease: two fit in `writes`."""
        return self.writes / 2


class EtcdRestored(Exception):
    """The API server has an older state than before: nothing that was observed counts any more."""


@dataclass(slots=True)
class LeaderElection:
    """A candidate, and the leader while it leads.

    Attributes:
        identity: name of this process, unique among running processes.
        reports_url: where other replicas reach this one's report endpoint; None: they cannot.
        begun: called when this process becomes the leader.
        ended: called when it is no longer the leader, or stops: ends what `begun` began, within some seconds. Returns
            whether everything ended by itself, without being cancelled.
        stop_seconds: for `ended` when the process stops.
        restored: called when the API server has an older state than before; this process then leaves the election
            until it has listed all objects again.
    """

    cluster: Cluster
    fence: WriteFence
    times: LeaseTimes
    namespace: str
    name: str
    identity: str
    reports_url: str | None
    begun: Callable[[], None]
    ended: Callable[[float], Awaitable[bool]]
    now: Callable[[], datetime]
    stop_seconds: float = 10.0
    restored: Callable[[], None] = lambda: None
    leads: bool = False
    _seen: Body | None = None
    _seen_at: float = 0.0
    _newest: int = 0
    _free_at: float = -math.inf
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def leader_url(self) -> str | None:
        """Report endpoint of the leader, if that is another replica and says where it is."""
        if self._seen is None or _holder(self._seen) in ("", self.identity):
            return None
        url = (self._seen["metadata"].get("annotations") or {}).get(REPORTS_ANNOTATION)
        return str(url) if url else None

    def observe(self, change: str, body: Body) -> None:
        """Take a change of a Lease from its watch."""
        if (body["metadata"].get("namespace"), body["metadata"]["name"]) != (self.namespace, self.name):
            return
        if change != "DELETED":
            self._see(body)
        elif self._seen is None or version_of(body["metadata"]) >= version_of(self._seen["metadata"]):
            if _holder(body) not in ("", self.identity):  # it may go on writing for a while
                self._free_at = self.fence.clock() + self.times.duration
            self._seen = None
        if self._seen is None or _holder(self._seen) == "" or (self.leads and _holder(self._seen) != self.identity):
            self._changed.set()

    async def run(self) -> None:
        """Take part until cancelled; then release the Lease."""
        try:
            while True:
                while (pause := await self._try()) is not None:
                    await self._wait(pause)
                await self._keep()
                await self._lose()
        except EtcdRestored as error:
            log.warning("%s", error)
            if self.leads:
                await self._lose()
            self.restored()
            await asyncio.Event().wait()
        finally:
            await self._resign()

    async def _wait(self, seconds: float) -> None:
        """Wait, or until the Lease changes."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        self._changed.clear()

    async def _try(self) -> float | None:
        """Take the Lease if it is free. Returns None if this process leads now, else seconds until the next try."""
        begun = self.fence.clock()
        newest = self._newest
        try:
            async with asyncio.timeout(self.times.request):
                lease = self._seen or await self._read()
                if (pause := self._free_in(lease)) > 0:
                    return pause
                before = _holder(lease) if lease else ""
                if lease is None:
                    answer = await self.cluster.create(self._new_lease())
                    self._require_growth(answer, newest)
                else:
                    answer = await self.cluster.patch(LEASES, lease, self._taken(lease))
        except (Conflict, NotFound):  # another replica was faster
            self._seen = None
            return SOON
        except (ClusterError, TimeoutError) as error:
            log.warning("Lease %s/%s: not acquired, retrying: %s", self.namespace, self.name, self._cause(error))
            return RETRY_SECONDS
        self._renewed(answer, begun)
        self.leads = True
        log.info("%s leads (Lease %s/%s)", self.identity, self.namespace, self.name)
        self.begun()
        await self._announce(answer, before)
        return None

    def _free_in(self, lease: Body | None) -> float:
        """Seconds until the Lease can be taken; 0 or less: now."""
        if lease is None:
            return self._free_at - self.fence.clock()
        if _holder(lease) in ("", self.identity):
            return 0.0
        duration = min(lease["spec"].get("leaseDurationSeconds") or self.times.duration, LONGEST_SECONDS)
        return self._seen_at + float(duration) - self.fence.clock()

    async def _keep(self) -> None:
        """Renew the Lease until that fails for too long, or another replica has it."""
        while True:
            await self._wait(self.times.renewal)
            while not await self._renew():
                if self.fence.left() <= 0 or self._seen is None or _holder(self._seen) != self.identity:
                    return

    async def _renew(self) -> bool:
        left = self.fence.left()
        begun = self.fence.clock()
        if left <= 0 or self._seen is None or _holder(self._seen) != self.identity:
            return False
        try:
            async with asyncio.timeout(min(left, self.times.request)):
                answer = await self.cluster.patch(LEASES, self._seen, {"spec": {"renewTime": self._timestamp()}})
        except (Conflict, NotFound):
            await self._look_again()
            return False
        except (ClusterError, TimeoutError) as error:
            log.warning("Lease %s/%s: not renewed, retrying: %s", self.namespace, self.name, self._cause(error))
            await self._wait(min(max(left, 0.0), RETRY_SECONDS))
            return False
        self._renewed(answer, begun)
        return True

    async def _look_again(self) -> None:
        """Read a Lease that changed since it was seen: by an earlier renewal without an answer, or by another one."""
        try:
            async with asyncio.timeout(self.times.request):
                if await self._read() is None:
                    self._seen = None
        except (ClusterError, TimeoutError) as error:
            log.warning("Lease %s/%s: not read, retrying: %s", self.namespace, self.name, self._cause(error))
            await self._wait(RETRY_SECONDS)

    async def _lose(self) -> None:
        self.fence.close()
        self.leads = False
        log.warning(
            "%s does not lead any more: the Lease %s/%s was not renewed", self.identity, self.namespace, self.name
        )
        await self.ended(0.0)

    async def _resign(self) -> None:
        """End the passes, then release the Lease. One whose passes had to be cancelled expires instead."""
        if not self.leads:
            return
        finished = await self.ended(self.stop_seconds)
        in_time = self.fence.left() > 0
        self.fence.close()
        self.leads = False
        if not (finished and in_time and self._seen):
            return
        free: Body = {
            "metadata": {"annotations": {REPORTS_ANNOTATION: None}},
            "spec": {"holderIdentity": None, "renewTime": self._timestamp()},
        }
        try:
            async with asyncio.timeout(self.times.request):
                await self.cluster.patch(LEASES, self._seen, free)
            log.info("Lease %s/%s: released", self.namespace, self.name)
        except (ClusterError, TimeoutError) as error:
            log.warning("Lease %s/%s: not released: %s", self.namespace, self.name, self._cause(error))

    async def _read(self) -> Body | None:
        newest = self._newest  # the watch may deliver later ones before the answer arrives
        lease = await self.cluster.read(LEASES, self.namespace, self.name)
        if lease is not None:
            self._require_growth(lease, newest)
            self._see(lease)
        return lease

    def _require_growth(self, answer: Body, newest: int) -> None:
        """Raise EtcdRestored if the answer to a request is older than what was seen before the request."""
        if (version := version_of(answer["metadata"])) < newest:
            raise EtcdRestored(
                f"Lease {self.namespace}/{self.name} has version {version}, and had {newest} before: etcd was restored "
                "from an older snapshot; observing everything again"
            )

    def _see(self, lease: Body) -> None:
        self._newest = max(self._newest, version_of(lease["metadata"]))
        if self._seen is None or version_of(lease["metadata"]) > version_of(self._seen["metadata"]):
            self._seen = lease
            self._seen_at = self.fence.clock()

    def _renewed(self, answer: Body, begun: float) -> None:
        self._see(answer)
        self.fence.open_until(begun + self.times.writes)

    def _cause(self, error: ClusterError | TimeoutError) -> str:
        """Why a request of the Lease failed; a TimeoutError has no text."""
        slow = f"no answer in time; if the API server stays this slow, raise LEASE_SECONDS ({self.times.duration} now)"
        return str(error) or slow

    async def _announce(self, lease: Body, before: str) -> None:
        told = f"; before: {before}" if before else ""
        transitions = lease["spec"].get("leaseTransitions", 0)
        event = Event("Normal", "LeaderElected", f"{self.identity} leads{told}", f"leader{transitions}")
        with suppress(TimeoutError):
            async with asyncio.timeout(self.times.request):
                await EventWriter(self.cluster, self.identity).create(lease, event, self.now())

    def _new_lease(self) -> Body:
        metadata = {"name": self.name, "namespace": self.namespace, "labels": {MANAGED_BY_LABEL: MANAGER}}
        taken = self._taken(None)
        return {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": {**metadata, **taken["metadata"]},
            "spec": taken["spec"],
        }

    def _taken(self, lease: Body | None) -> Body:
        """What a new leader writes."""
        old = (lease or {}).get("spec") or {}
        same = bool(lease) and old.get("holderIdentity") == self.identity
        at = self._timestamp()
        return {
            "metadata": {"annotations": {REPORTS_ANNOTATION: self.reports_url}},
            "spec": {
                "holderIdentity": self.identity,
                "leaseDurationSeconds": self.times.duration,
                "acquireTime": at,
                "renewTime": at,
                "leaseTransitions": min(
                    int(old.get("leaseTransitions") or 0) + (0 if same or not lease else 1), MOST_TRANSITIONS
                ),
            },
        }

    def _timestamp(self) -> str:
        return self.now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _holder(lease: Body) -> str:
    return str((lease.get("spec") or {}).get("holderIdentity") or "")
