"""Token buckets by key, in bounded memory."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

KEYS_KEPT = 4096


@dataclass(slots=True)
class RateLimiter:
    """Counts events by key; a key has used up its events after `burst`, and gets `rate` more each second.

    Keys that have all their events again are forgotten, and beyond `KEYS_KEPT` those that were not used for longest.
    """

    rate: float
    burst: int
    clock: Callable[[], datetime]
    _used: OrderedDict[object, tuple[float, datetime]] = field(default_factory=OrderedDict)

    def allows(self, key: object) -> bool:
        """Whether the key has an event left."""
        return self._spent(key) <= self.burst - 1

    def count(self, key: object) -> None:
        """Count one event."""
        self._used[key] = self._spent(key) + 1, self.clock()
        self._used.move_to_end(key)
        while len(self._used) > KEYS_KEPT or not self._spent(next(iter(self._used))):
            self._used.popitem(last=False)

    def _spent(self, key: object) -> float:
        now = self.clock()
        spent, at = self._used.get(key, (0.0, now))
        if at > now:  # the clock was set back: from now on the key gets events again
            self._used[key] = spent, now
        return max(0.0, spent - self.rate * max(0.0, (now - at).total_seconds()))
