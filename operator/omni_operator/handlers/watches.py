"""Changes of jobs, their children and Leases: each updates the cache and wakes the worker of its job.

Jobs arrive through kopf (`jobs.py`), all others through the operator's own informer
(docs/adr/0013-jobs-through-kopf.md).

A pass needs the job's children, so jobs wait until all kinds of children were listed once. After that, new jobs are
passed over as they arrive, and all others when the jobs are listed too, because their passes would delay the list.

A namespace in which the operator may not list something waits alone: who deletes the RoleBinding there, or the
namespace itself, must not stop the jobs of all others.
"""

import asyncio
import functools
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from omni_operator.api.names import SELECTOR
from omni_operator.cluster.cache.object_cache import ObjectCache
from omni_operator.cluster.kinds import (
    ATTEMPT_KINDS,
    JOBS,
    LEASES,
    NETWORK_POLICIES,
    POD_MONITORS,
    Body,
    Key,
    Kind,
)
from omni_operator.cluster.watch.object_watch import ObjectWatch, WatchSource
from omni_operator.cluster.watch.watch_liveness import WatchLiveness

CHILDREN = (*ATTEMPT_KINDS, NETWORK_POLICIES, POD_MONITORS)
Unlisted = tuple[Kind, str | None]
log = logging.getLogger(__name__)


@dataclass(slots=True)
class Watches:
    """Watches of the children of jobs and of the operator's Lease; jobs are given to `handle` and `compare`.

    Attributes:
        namespaces: namespaces to watch; empty: all.
        own_namespace: namespace of the operator's Leases.
        lease_changed: called with type and object of each change of a Lease.
        restored: called when a list has older objects than before: etcd was restored from an older snapshot.
        listed_anew: called with the namespace after each list of children but the first: an event may have been missed.
        children_listed: set when all kinds of children were listed once, in all namespaces except denied ones.
        wake: called with the job that an event belongs to.
        watched: called with the resource of every event, for metrics.
    """

    source: WatchSource
    namespaces: tuple[str, ...]
    cache: ObjectCache
    liveness: WatchLiveness
    wake: Callable[[Key], None]
    watched: Callable[[str], None]
    own_namespace: str
    lease_changed: Callable[[str, Body], None] = lambda change, body: None
    restored: Callable[[], None] = lambda: None
    listed_anew: Callable[[str | None], None] = lambda namespace: None
    children_listed: asyncio.Event = field(default_factory=asyncio.Event)
    _unlisted: set[Unlisted] = field(default_factory=set)
    _denied: set[Unlisted] = field(default_factory=set)
    _lease_seen: bool = False

    def runs(self) -> list[Coroutine[Any, Any, None]]:
        """The watches of all kinds but jobs, to be run at the same time until they are cancelled."""
        watches = [
            ObjectWatch(
                self.source,
                kind,
                namespace,
                selector_of(kind),
                self.handle,
                self.compare,
                functools.partial(self.synced, (kind, namespace)),
                functools.partial(self.denied, (kind, namespace)),
            )
            for kind in (*CHILDREN, LEASES)
            for namespace in ((self.own_namespace,) if kind == LEASES else self.namespaces or (None,))
        ]
        self._unlisted = {(watch.kind, watch.namespace) for watch in watches}
        self._unlisted |= {(JOBS, namespace) for namespace in self.namespaces or (None,)}
        return [watch.run() for watch in watches]

    def handle(self, kind: Kind, change: str, body: Body) -> None:
        """Handle a change: `ADDED`, `MODIFIED` or `DELETED`. An object that cannot be parsed stops no watch."""
        try:
            self._handle(kind, change, body)
        except Exception:
            name = f"{body['metadata'].get('namespace')}/{body['metadata'].get('name')}"
            log.exception("%s %s: this change is ignored", kind.plural, name)

    def _handle(self, kind: Kind, change: str, body: Body) -> None:
        self.watched(kind.plural)
        self.liveness.confirm(kind, body)
        if kind == LEASES:
            self._lease_seen = True
            self.lease_changed(change, body)
            self._update()
            return
        key = self.cache.remove(kind, body) if change == "DELETED" else self.cache.put(kind, body)
        if key is not None:
            self._wake(key)

    def compare(self, kind: Kind, namespace: str | None, alive: Mapping[str, int], version: int) -> None:
        """Compare the cached objects with a list: it lacks those whose deletion was not reported.

        Args:
            alive: versions of the listed objects by uid.
        """
        if kind != LEASES:
            if self.cache.is_newer(kind, alive, version, namespace):
                log.warning(
                    "%s: a list has older objects than before: etcd was restored from an older snapshot; observing "
                    "everything again",
                    kind.plural,
                )
                self.restored()
            for key in self.cache.remove_missing(kind, alive, version, namespace):
                if kind == JOBS:
                    self.liveness.forget(JOBS, key)
                self._wake(key)
            if kind != JOBS:
                self.liveness.listed(kind, namespace, version)
                if (kind, namespace) not in self._unlisted:
                    self.listed_anew(namespace)

    def synced(self, done: Unlisted) -> None:
        """Start the passes that waited for a list."""
        self._denied.discard(done)
        if done in self._unlisted:
            self._unlisted.discard(done)
            if done[0] != LEASES:
                self.wake_all()
        self._update()

    def denied(self, what: Unlisted) -> None:
        """Let a namespace wait alone in which the operator may not list a kind."""
        if what in self._unlisted and what not in self._denied:
            self._denied.add(what)
            kind, namespace = what
            where = f"namespace {namespace}" if namespace else "all namespaces"
            log.error("%s: the operator may not watch %s: jobs there wait for its roles", where, kind.plural)
            self._update()

    def wake_all(self) -> None:
        """Start a pass over each job, unless it has to wait for a list."""
        for key in self.cache.jobs():
            self._wake(key)

    def _wake(self, key: Key) -> None:
        summary = self.cache.summary(key)
        unlisted = {kind for kind, namespace in self._unlisted if namespace in (None, key[0])}
        if unlisted.isdisjoint(CHILDREN) and (JOBS not in unlisted or (summary is not None and summary.is_new)):
            self.wake(key)

    def _update(self) -> None:
        """Tell what is listed by now."""
        waiting = self._awaited()
        if not any(kind in CHILDREN for kind, _ in waiting):
            self.children_listed.set()
        if self._lease_seen and not waiting and not self.liveness.ready:
            self.liveness.ready = True
            log.info("all objects are listed; the watches deliver changes")

    def _awaited(self) -> set[Unlisted]:
        """The lists to wait for: without lists of denied namespaces, unless all namespaces are denied."""
        alone = {namespace for _, namespace in self._denied}
        if not alone < set(self.namespaces):
            return self._unlisted
        return {(kind, namespace) for kind, namespace in self._unlisted if kind == LEASES or namespace not in alone}


def selector_of(kind: Kind) -> str:
    """Label selector of the objects to watch; jobs, and the Leases of one namespace, are watched with any labels."""
    return "" if kind in (JOBS, LEASES) else SELECTOR
