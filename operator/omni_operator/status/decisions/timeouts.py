"""How long the operator waits before it treats a problem as a failure."""

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """How long the operator waits for problems that may resolve themselves.

    Attributes:
        head: for a head pod that is not ready after it once was; and for Kubernetes to notice a lost node, after Ray
            has lost a pod for an unknown reason.
        image: for an image that cannot be pulled, from the creation of the pod.
        restarts: restarts of one container before the attempt counts as failed.
        stall: without a report before the job counts as stalled.
        leftovers: for objects of a failed attempt to go, e.g. pods of a lost node, before the next attempt is created.
        queue: in a Kueue queue, for each number of rollout pods, before an attempt asks for another one; doubled from
            round to round, up to eight times as long. Outside of one, for rollout pods that find no node, before an
            attempt starts without them.
        retry: pause before the second attempt; doubled for each further one up to `retry_most`.
    """

    head: timedelta = timedelta(seconds=60)
    image: timedelta = timedelta(seconds=60)
    restarts: int = 4
    stall: timedelta = timedelta(minutes=10)
    leftovers: timedelta = timedelta(minutes=10)
    queue: timedelta = timedelta(minutes=2)
    retry: timedelta = timedelta(seconds=5)
    retry_most: timedelta = timedelta(minutes=5)
