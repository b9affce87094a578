"""kopf's watches: every event goes into the cache, and wakes the worker of its job.

The cache is filled by an own list before kopf starts, so the first pass over a job knows all of its children. kopf's
indices would do the same, but hold every object of a first list in memory until all lists are read.
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
IDLE_SECONDS = 0.2  # a kopf worker of an object that is quiet keeps memory, and its place where places are limited


@dataclass(frozen=True, slots=True)
class Watches:
    """Where events go.

    Attributes:
        wake: called for the job that an event matters to.
        watched: called for the resource of every event, for metrics.
    """

    cache: ObjectCache
    liveness: WatchLiveness
    wake: Callable[[Key], None]
    watched: Callable[[str], None]

    def register(self, registry: kopf.OperatorRegistry) -> None:
        """Have kopf watch everything that the operator needs to know of."""
        for kind in (JOBS, *CHILDREN, LEASES):
            self._register(registry, kind)

    def _register(self, registry: kopf.OperatorRegistry, kind: Kind) -> None:
        async def event(*, type: str | None, body: kopf.Body, **_: Any) -> None:  # noqa: A002 - kopf's name for it
            self.take(kind, type, _plain(body, kind))

        where = (kind.group, kind.version, kind.plural)
        kopf.on.event(*where, id=f"event-{kind.plural}", registry=registry)(event)

    def take(self, kind: Kind, change: str | None, body: Body) -> None:
        """One event: `DELETED`, or anything else for an object that is there; None or `ADDED` for a new one."""
        self.watched(kind.plural)
        self.liveness.confirm(kind, body)
        if kind == LEASES:
            self.liveness.ready = True  # the cache was filled before, and now the watches live
            return
        key = self.cache.remove(kind, body) if change == "DELETED" else self.cache.put(kind, body)
        if key is None and kind == JOBS and change in (None, "ADDED"):
            # The first list has stored it before anybody was to be woken.
            key = str(body["metadata"]["namespace"]), str(body["metadata"]["name"])
        if key is not None:
            self.wake(key)


def configure(settings: kopf.OperatorSettings, ours: Settings) -> None:
    """kopf as this operator needs it."""
    # Looking for new kinds and namespaces takes rights in the whole cluster, and kopf looks once for each change of a
    # CRD, which may be before the API server serves it: then never again. `MissingKinds` finds what comes later.
    settings.scanning.disabled = True
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)  # else a line for every event
    watching, networking = settings.watching, settings.networking
    watching.chunk_size = 100  # objects that are in memory at once, managedFields and all
    for kind in (*CHILDREN, LEASES):
        watching.label_selectors[kind.group, kind.version, kind.plural] = SELECTOR
    networking.request_timeout, networking.connect_timeout = 30, 10
    settings.queueing.idle_timeout = IDLE_SECONDS
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.persistence.finalizer = f"{FINALIZER}-of-kopf"  # kopf adds none; its default name would be kopf's own
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=GROUP)
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=GROUP)
    settings.process.ultimate_exiting_timeout = ours.stop_seconds


def _plain(body: kopf.Body, kind: Kind) -> Body:
    """The object as a dictionary that says what it is; items of a list do not."""
    return {"apiVersion": kind.api_version, "kind": kind.kind, **dict(body)}
