"""`ReplicaLoad`: the requests that a replica of a judge has, and how long it has answered none. PURE."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class ReplicaLoad:
    """Requests of one replica.

    Attributes:
        requests: those in flight.
        given_up: those that their clients gave up since the last answer.
        silent_since: seconds of `BusyClock` at the first request since the last answer.
    """

    requests: int = 0
    given_up: int = 0
    silent_since: float = 0.0

    @property
    def owed(self) -> int:
        """By how much a replica is loaded: without `given_up`, one that hangs would look idle."""
        return self.requests + self.given_up

    def sent(self, busy: float) -> None:
        """A request was sent to the replica."""
        if not self.owed:
            self.silent_since = busy
        self.requests += 1

    def answered(self, busy: float) -> None:
        """The replica has answered a request."""
        self.requests -= 1
        self.given_up = 0
        self.silent_since = busy

    def ended(self) -> None:
        """The client gave a request up, or the connection failed."""
        self.requests -= 1
        self.given_up += 1

    def silence(self, busy: float) -> float:
        """Seconds of `BusyClock` in which the replica owed answers and sent none."""
        return busy - self.silent_since if self.owed else 0.0


@dataclass
class BusyClock:
    """Seconds in which a router had requests: between two batches, a replica has none to answer."""

    _requests: int = field(default=0)
    _seconds: float = field(default=0.0)
    _since: float = field(default=0.0)

    def begin(self, now: float) -> None:
        """A request has arrived."""
        if not self._requests:
            self._since = now
        self._requests += 1

    def end(self, now: float) -> None:
        """A request has been answered, or given up."""
        self._requests -= 1
        if not self._requests:
            self._seconds += now - self._since

    def read(self, now: float) -> float:
        """Seconds until now."""
        return self._seconds + (now - self._since if self._requests else 0.0)
