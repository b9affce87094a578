"""How long the operator waits before it treats a problem as a failure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """How long the operator waits for what may mend itself.

    Attributes:
        head: a head that exists but is not ready, after it once was.
        image: an image that cannot be pulled, from the pod's creation.
        restarts: of one container before the attempt counts as failed.
        stall: without a report, after the first one.
        deletion: before our finalizer is removed whatever is left.
        leftovers: of a failed attempt, such as pods of a node that is gone, before the next one is made beside them.
        retry: before the second attempt; doubled for each further one up to `retry_most`.
    """

    head: timedelta = timedelta(seconds=60)
    image: timedelta = timedelta(seconds=60)
    restarts: int = 4
    stall: timedelta = timedelta(minutes=10)
    deletion: timedelta = timedelta(seconds=60)
    leftovers: timedelta = timedelta(minutes=10)
    retry: timedelta = timedelta(seconds=5)
    retry_most: timedelta = timedelta(minutes=5)
