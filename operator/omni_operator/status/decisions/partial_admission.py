"""PURE: for how many rollout pods an attempt asks a Kueue queue that has not admitted it.

Kueue admits all pods of a RayJob or none. So an attempt that may start with fewer rollout pods asks for fewer, step by
step down to `spec.rollout.minReplicas`, and then for all of them again, after a pause for each number that grows from
round to round.

Invariants:
- the RayJob is suspended whenever its numbers change, and KubeRay has deleted its pods;
- the number is always from `fewest` to `most`, and each wait begins with `most`;
- the next number follows from the RayJob and the status alone.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from omni_operator.api.names import ROLLOUT_GROUP
from omni_operator.api.status import Status
from omni_operator.status.observed.observation import Asked, Observation, ObservedRayJob, PoolSize
from omni_operator.status.observed.timestamps import EARLIEST, parse_timestamp

from .reserved_quota import restore_numbers
from .situation import AskForPods, ReserveQuota
from .timeouts import Timeouts

MOST_STEPS = 7  # steps in a round: a large number of pods goes down by several at a time
MOST_DOUBLINGS = 3  # how often the pause may double
RECHECK = timedelta(seconds=30)


def find_request(
    observed: Observation, attempt: int, status: Status, timeouts: Timeouts, now: datetime
) -> tuple[AskForPods | ReserveQuota | None, datetime | None]:
    """The next number to ask the queue for, if it is due, and the time of the next pass.

    An attempt whose pods were autoscaled before the queue took the quota back asks for the numbers of its start first.

    Args:
        status: the last written status, which says since when the attempt waits.
    """
    rayjob = observed.rayjob(attempt)
    admitted = status.condition("Admitted")
    if rayjob is None or not _waits(rayjob):
        return None, None
    if admitted is None or admitted.reason != "Queued":
        return None, None  # the status follows at once
    if restored := restore_numbers(rayjob):
        return restored, now + RECHECK
    size = _adjustable(observed, attempt)
    if size is None:
        return None, None
    # A time that is ahead is from before the clock was set back, and says nothing.
    begins = (rayjob.created, parse_timestamp(admitted.last_transition_time))
    begun = max((at for at in begins if at and at <= now), default=EARLIEST)
    asked = rayjob.asked
    if asked is None or asked.at < begun:
        if size.pods != size.most:  # as the queue admitted it before it took the quota back
            return AskForPods(rayjob, size.pods, size.most, 0), now + RECHECK
        asked = Asked(begun)
    pause = timeouts.queue * 2 ** min(asked.rounds, MOST_DOUBLINGS)
    due = asked.at + pause
    if now < due <= now + pause:
        return None, due
    new = next_number(size)
    return AskForPods(rayjob, size.pods, new, asked.rounds + (new == size.most)), now + pause


def _adjustable(observed: Observation, attempt: int) -> PoolSize | None:
    """The rollout pods of an attempt that may ask its queue for fewer; None if it may not."""
    rayjob = observed.rayjob(attempt)
    size = rayjob.pool(ROLLOUT_GROUP) if rayjob else None
    return size if size is not None and size.adjustable else None


def _waits(rayjob: ObservedRayJob) -> bool:
    """Whether the queue has not admitted the RayJob, and KubeRay has deleted all of its pods."""
    return rayjob.suspended and rayjob.deployment == "Suspended" and not rayjob.deleting


def next_number(size: PoolSize) -> int:
    """The number of pods to ask for after `size.pods`: the next lower one of at most MOST_STEPS steps, or again all."""
    steps = min(MOST_STEPS, size.most - size.fewest)
    numbers = (size.most - (size.most - size.fewest) * step // steps for step in range(1, steps + 1))
    return next((number for number in numbers if number < size.pods), size.most)


def describe_request(observed: Observation, attempt: int) -> str:
    """How many rollout pods an attempt that waits asks for; empty if it may only ask for all."""
    size = _adjustable(observed, attempt)
    if size is None:
        return ""
    return f"asks for {size.pods} of {size.most} rollout pods (spec.rollout.minReplicas: {size.fewest})"


def describe_admission(observed: Observation, attempt: int) -> str:
    """With how many rollout pods the queue admitted an attempt; empty if with all."""
    size = _adjustable(observed, attempt)
    if size is None or size.pods >= size.most:
        return ""
    return f"admitted with {size.pods} of {size.most} rollout pods; the next attempt asks for all of them again"
