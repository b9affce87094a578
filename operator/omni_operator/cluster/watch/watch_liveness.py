"""Liveness of the watches: the operator's own writes must arrive as watch events.

A watch can stop delivering events while the rest of the process works. The process therefore counts as alive only if
the watch delivers each tracked write (the operator's Lease, every RayJob that it creates, every status of a job) within
the deadline. Failed writes are not tracked: an unreachable API server is no reason to restart.
"""

from dataclasses import dataclass, field

from omni_operator.cluster.kinds import JOBS, LEASES, RAYJOBS, Body, Key, Kind, version_of

TRACKED = (LEASES, RAYJOBS, JOBS)  # kinds whose writes are expected
MAX_TRACKED = 4096
MAX_EARLY = 256  # objects whose events may have arrived before the answers to the writes
Place = tuple[Kind, str, str]


@dataclass(slots=True)
class WatchLiveness:
    """Writes for which no watch event has arrived yet.

    Attributes:
        deadline: seconds within which the watch must deliver a write.
        ready: whether the first event of the Lease has arrived.
    """

    deadline: float
    ready: bool = False
    _waiting: dict[Place, tuple[int, float]] = field(default_factory=dict)
    _newest: dict[Place, int] = field(default_factory=dict)  # the last events of objects without an expected write

    def expect(self, kind: Kind, body: Body, at: float) -> None:
        """Track a write that succeeded at `at`; `body` is the API server's answer."""
        tracked = _place(kind, body)
        version = version_of(body["metadata"])
        if self._newest.get(tracked, 0) >= version or len(self._waiting) >= MAX_TRACKED:
            return
        # The oldest undelivered write counts, so that a stream of writes cannot hide a dead watch.
        since = self._waiting.get(tracked, (0, at))[1]
        self._waiting[tracked] = (version, since)

    def confirm(self, kind: Kind, body: Body) -> None:
        """Record a watch event of an object, or of its deletion."""
        if kind not in TRACKED:
            return
        tracked = _place(kind, body)
        version = version_of(body["metadata"])
        waited = self._waiting.get(tracked)
        if waited is None:
            self._newest.pop(tracked, None)
            self._newest[tracked] = version  # the last one
            if len(self._newest) > MAX_EARLY:
                del self._newest[next(iter(self._newest))]
        elif version >= waited[0]:
            del self._waiting[tracked]

    def forget(self, kind: Kind, key: Key) -> None:
        """Do not wait for an object that a list lacks: no event tells of its deletion any more."""
        self._waiting.pop((kind, *key), None)

    def listed(self, kind: Kind, namespace: str | None, version: int) -> None:
        """Record a list of a watch, which has all earlier writes, or shows that their objects are gone by now."""
        for tracked, (written, _) in list(self._waiting.items()):
            if tracked[0] == kind and namespace in (None, tracked[1]) and written <= version:
                del self._waiting[tracked]

    def overdue(self, now: float) -> list[str]:
        """One message for each write whose event is overdue; empty while the watch works."""
        return [
            f"{tracked[0].plural} {tracked[1]}/{tracked[2]}: written {now - since:.0f} s ago, no watch event since"
            for tracked, (_, since) in self._waiting.items()
            if now - since > self.deadline
        ]


def _place(kind: Kind, body: Body) -> Place:
    return kind, str(body["metadata"].get("namespace") or ""), str(body["metadata"]["name"])
