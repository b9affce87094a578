"""kopf's watches: each event updates the cache and wakes the worker of its job.

The operator fills the cache with its own lists before kopf starts, so the first pass over a job has all its children.
kopf's indices do the same, but hold every object of the first lists in memory until all lists are complete.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import kopf

from omni_operator.api.names import FINALIZER, GROUP, SELECTOR
from omni_operator.cluster.kinds import (
    ATTEMPT_KINDS,
    JOBS,
    LEASES,
    NETWORK_POLICIES,
    POD_MONITORS,
    SERVICES,
    Body,
    Key,
    Kind,
)
from omni_operator.cluster.object_cache import ObjectCache
from omni_operator.cluster.watch_liveness import WatchLiveness
from omni_operator.settings import Settings

CHILDREN = (*ATTEMPT_KINDS, SERVICES, NETWORK_POLICIES, POD_MONITORS)
IDLE_SECONDS = 0.2  # an idle kopf worker of an object takes memory


@dataclass(frozen=True, slots=True)
class Watches:
    """Receiver of watch events.

    Attributes:
        wake: called with the job that an event belongs to.
        watched: called with the resource of every event, for metrics.
    """

    cache: ObjectCache
    liveness: WatchLiveness
    wake: Callable[[Key], None]
    watched: Callable[[str], None]

    def register(self, registry: kopf.OperatorRegistry) -> None:
        """Register watches for jobs, their children and the Lease."""
        for kind in (JOBS, *CHILDREN, LEASES):
            self._register(registry, kind)

    def _register(self, registry: kopf.OperatorRegistry, kind: Kind) -> None:
        async def event(*, type: str | None, body: kopf.Body, **_: Any) -> None:  # noqa: A002 - the name that kopf passes
            self.handle(kind, type, _plain(body, kind))

        where = (kind.group, kind.version, kind.plural)
        kopf.on.event(*where, id=f"event-{kind.plural}", registry=registry)(event)

    def handle(self, kind: Kind, change: str | None, body: Body) -> None:
        """Handle an event: `DELETED`, `MODIFIED`, `ADDED`, or None for an object of the first list."""
        self.watched(kind.plural)
        self.liveness.confirm(kind, body)
        if kind == LEASES:
            self.liveness.ready = True  # the cache was filled before, and the watches deliver events
            return
        key = self.cache.remove(kind, body) if change == "DELETED" else self.cache.put(kind, body)
        if key is None and kind == JOBS and change in (None, "ADDED"):
            # It is in the cache since the first list, but no worker was started for it.
            key = str(body["metadata"]["namespace"]), str(body["metadata"]["name"])
        if key is not None:
            self.wake(key)


def configure(settings: kopf.OperatorSettings, ours: Settings) -> None:
    """Set kopf's options."""
    # Scanning for new kinds and namespaces needs cluster-wide permissions, and kopf checks once per change of a CRD,
    # possibly before the API server serves it. `MissingKinds` detects kinds that are installed later.
    settings.scanning.disabled = True
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)  # it logs every event otherwise
    watching, networking = settings.watching, settings.networking
    watching.chunk_size = 100  # objects per page of a list, in memory with their managedFields
    for kind in (*CHILDREN, LEASES):
        watching.label_selectors[kind.group, kind.version, kind.plural] = SELECTOR
    networking.request_timeout, networking.connect_timeout = 30, 10
    settings.queueing.idle_timeout = IDLE_SECONDS
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.persistence.finalizer = f"{FINALIZER}-of-kopf"  # kopf adds none; the default name is in kopf's domain
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=GROUP)
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=GROUP)
    settings.process.ultimate_exiting_timeout = ours.stop_seconds


def _plain(body: kopf.Body, kind: Kind) -> Body:
    """The object as a dictionary with apiVersion and kind, which items of a list lack."""
    return {"apiVersion": kind.api_version, "kind": kind.kind, **dict(body)}
