"""Fence of writes: a process that does not hold the Lease, or renewed it too long ago, sends no write.

The client of the API server asks it before each write, and ends each write by then. What another replica waits for
before it takes over is longer (`LeaseTimes`), so writes of two leaders never overlap.
"""

import functools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from omni_operator.cluster.errors import NotLeader

# Counts the time in which the machine was suspended too, where the system has such a clock.
lease_clock: Callable[[], float] = functools.partial(
    time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
)


@dataclass(slots=True)
class WriteFence:
    """Until when this process may write.

    Attributes:
        clock: seconds; it never goes back.
    """

    clock: Callable[[], float] = lease_clock
    _until: float = -math.inf

    def open_until(self, until: float) -> None:
        """Allow writes until then, by the fence's clock."""
        self._until = until

    def close(self) -> None:
        """Allow no more writes."""
        self._until = -math.inf

    def left(self) -> float:
        """Seconds in which writes are allowed; 0 or less: none are."""
        return self._until - self.clock()

    def require(self, what: str) -> float:
        """The seconds in which a write must end.

        Raises:
            NotLeader: writes are not allowed.
        """
        left = self.left()
        if left <= 0:
            raise NotLeader(f"{what}: not sent, because this replica does not hold the leader's Lease")
        return left


def no_fence(what: str) -> float:
    """For a client that is the only one, as in tests: it may always write."""
    return math.inf
