"""WatchLiveness that the watches live: what the operator writes comes back to it by its own watch.

A watch can die in silence while every other part answers. So the process is alive only if each of its proving writes
(its own Lease, and every RayJob that it makes) was seen by the watch within the deadline. Writes that failed prove
nothing: an API server that is away is no reason to start again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .kinds import Body, Kind

KEPT = 4096
Place = tuple[Kind, str, str]


@dataclass(slots=True)
class WatchLiveness:
    """Writes that the watch has not told of yet.

    Attributes:
        deadline: seconds that the watch may take.
    """

    deadline: float
    ready: bool = False
    _waiting: dict[Place, tuple[int, float]] = field(default_factory=dict)
    _newest: dict[Place, int] = field(default_factory=dict)

    def expect(self, kind: Kind, body: Body, at: float) -> None:
        """A write succeeded at `at`; `body` is the answer."""
        place, version = _place(kind, body), _version(body)
        if self._newest.get(place, 0) >= version or len(self._waiting) >= KEPT:
            return
        # The oldest write that was not seen counts, so that a stream of them cannot hide a dead watch.
        since = self._waiting.get(place, (0, at))[1]
        self._waiting[place] = (version, since)

    def confirm(self, kind: Kind, body: Body) -> None:
        """The watch told of an object, or of its deletion."""
        place, version = _place(kind, body), _version(body)
        waited = self._waiting.get(place)
        if waited is None:
            self._newest[place] = version
            while len(self._newest) > KEPT:
                del self._newest[next(iter(self._newest))]
        elif version >= waited[0]:
            del self._waiting[place]

    def overdue(self, now: float) -> list[str]:
        """What the watch should have told of by now, in words; nothing while it lives."""
        return [
            f"{place[0].plural} {place[1]}/{place[2]} was written {now - since:.0f} s ago and not seen"
            for place, (_, since) in self._waiting.items()
            if now - since > self.deadline
        ]


def _place(kind: Kind, body: Body) -> Place:
    return kind, str(body["metadata"].get("namespace") or ""), str(body["metadata"]["name"])


def _version(body: Body) -> int:
    text = str(body["metadata"].get("resourceVersion") or "")
    return int(text) if text.isdigit() else 0
