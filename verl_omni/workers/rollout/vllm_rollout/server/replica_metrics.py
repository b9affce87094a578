"""`ReplicaMetrics`: the exported metrics of one rollout replica."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from verl_omni.utils.metrics.exported_metrics import IDLE_SECONDS, IN_FLIGHT, RECEIVED_BYTES, SERVED
from verl_omni.utils.metrics.metrics_writer import MetricsWriter


class ReplicaMetrics:
    """Writes metrics of a replica's requests and weight updates.

    Args:
        replica: number of the replica.
    """

    def __init__(self, replica: int) -> None:
        self._writer = MetricsWriter({"replica": str(replica)})
        self._requests = 0
        self._idle_since: float | None = None  # None: busy, or without weights yet

    @property
    def requests(self) -> int:
        """Number of requests in flight."""
        return self._requests

    @contextmanager
    def in_flight(self) -> Iterator[None]:
        """Count a request while it is in the block."""
        self.count(1)
        try:
            yield
        finally:
            self.count(-1)

    def count(self, change: int) -> None:
        """Add requests that begin, or subtract those that have ended."""
        self._requests += change
        if self._requests and self._idle_since is not None:
            self._writer.add(IDLE_SECONDS, time.monotonic() - self._idle_since)
            self._idle_since = None
        elif not self._requests and self._idle_since is None:
            self._idle_since = time.monotonic()
        self._writer.set(IN_FLIGHT, self._requests)

    def received(self, replies: Sequence[Mapping[str, Any]]) -> None:
        """Record an update from the workers' replies."""
        self._writer.add(RECEIVED_BYTES, replies[0]["bytes"])

    def serves(self, version: int) -> None:
        """Record the version of the weights that later samples have."""
        self._writer.set(SERVED, version)
        self.count(0)  # a series from the first version on
