"""Watch of one kind of object: a list first, then changes from its version on, without a gap.

Invariants:
- `handle` receives each change in order; after a list, `listed` receives what exists, so that the objects whose
  deletion no event reported can be removed;
- a broken connection continues from the last version; only an expired version leads to a new list;
- lists without any change in between, because each one expires, follow each other after pauses that grow.
"""

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Protocol

from omni_operator.cluster.errors import ClusterError, Expired, Forbidden, KindAbsent, Refused, Unavailable
from omni_operator.cluster.kinds import Body, Kind, as_number, version_of

from .watch_client import is_end_of_list

PAUSE_FIRST = 0.2
PAUSE_MOST = 30.0
PAUSE_ABSENT = 15.0
log = logging.getLogger(__name__)


class WatchSource(Protocol):
    """Requests of a watch; `WatchClient` sends them to an API server."""

    def changes(
        self, kind: Kind, namespace: str | None, selector: str, since: str | None
    ) -> AsyncGenerator[tuple[str, Body]]:
        """Type and object of each change after a version; without a version, all objects come first."""

    def pages(self, kind: Kind, namespace: str | None, selector: str) -> AsyncGenerator[tuple[list[Body], str]]:
        """All objects page by page, each page with the version of the list."""


@dataclass(slots=True)
class ObjectWatch:
    """Watch of a kind in a namespace, or in all of them.

    Attributes:
        handle: called with each change: `ADDED`, `MODIFIED` or `DELETED`. Objects of a list are `ADDED`.
        listed: called after each list with the resource versions of existing objects by uid, and the list's version.
        synced: called after each list, and when the kind turns out not to be served.
        denied: called when the operator may not list the objects.
    """

    source: WatchSource
    kind: Kind
    namespace: str | None
    selector: str
    handle: Callable[[Kind, str, Body], None]
    listed: Callable[[Kind, str | None, dict[str, int], int], None]
    synced: Callable[[], None]
    denied: Callable[[], None] = lambda: None
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    _version: str | None = None
    _streams_lists: bool = True
    _pause: float = field(default_factory=lambda: PAUSE_FIRST)
    _expired: int = 0  # lists since the last change

    async def run(self) -> None:
        """Watch until cancelled. Failures are retried after a pause that grows while there is no progress."""
        where = self.namespace or "all namespaces"
        while True:
            try:
                await self._follow()
                await self.sleep(PAUSE_FIRST)
            except Expired as error:
                log.info("%s in %s: listing again: %s", self.kind.plural, where, error)
                self._version = None
                if self._expired:
                    await self.sleep(min(PAUSE_FIRST * 2 ** min(self._expired, 16), PAUSE_MOST))
                self._expired += 1
            except KindAbsent:
                self._version = None
                self.synced()  # nothing of it exists
                await self.sleep(PAUSE_ABSENT)
            except ClusterError as error:
                if isinstance(error, Forbidden):
                    self.denied()
                after = error.after if isinstance(error, Unavailable) else None
                pause = max(after or 0.0, self._pause * random.uniform(0.5, 1.0))
                self._pause = min(self._pause * 2, PAUSE_MOST)
                log.warning("%s in %s: watch failed, retry in %.1f s: %s", self.kind.plural, where, pause, error)
                await self.sleep(pause)

    async def _follow(self) -> None:
        if self._version is None and not self._streams_lists:
            await self._list()
        try:
            await self._stream()
        except Refused as error:
            if self._version is not None or not self._streams_lists or isinstance(error, Forbidden):
                self._version = None
                raise
            # API servers before 1.32 refuse it, and those where the feature WatchList is off.
            log.info("%s: the API server does not stream lists; listing in pages", self.kind.plural)
            self._streams_lists = False

    async def _stream(self) -> None:
        alive: dict[str, int] = {}
        changes = self.source.changes(self.kind, self.namespace, self.selector, self._version)
        async with aclosing(changes):
            async for change, body in changes:
                self._pause = PAUSE_FIRST
                version = str(body["metadata"].get("resourceVersion") or "")
                if change != "BOOKMARK":
                    self.handle(self.kind, change, body)
                if self._version is not None:
                    self._version = version
                    self._expired = 0
                elif change != "BOOKMARK":
                    alive[str(body["metadata"].get("uid"))] = as_number(version)
                elif is_end_of_list(body):
                    self._complete(alive, version)
                    alive = {}
        if self._version is None:
            raise Unavailable(f"list {self.kind.plural}: the connection ended within the list")

    async def _list(self) -> None:
        alive: dict[str, int] = {}
        version = ""
        async for page, version in self.source.pages(self.kind, self.namespace, self.selector):  # noqa: B007 - used after
            self._pause = PAUSE_FIRST
            for body in page:
                self.handle(self.kind, "ADDED", body)
                alive[str(body["metadata"].get("uid"))] = version_of(body["metadata"])
        self._complete(alive, version)

    def _complete(self, alive: dict[str, int], version: str) -> None:
        self._version = version
        self.listed(self.kind, self.namespace, alive, as_number(version))
        self.synced()
