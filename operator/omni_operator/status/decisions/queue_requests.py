"""PURE: how many pods an attempt that waits asks of a Kueue queue.

Kueue admits all pods of a RayJob or none. So an attempt that may start with fewer rollout pods asks for fewer, step by
step down to `spec.rollout.minReplicas`, and then for all of them again, after a pause for each number that grows from
round to round.

Invariants:
- the RayJob is suspended whenever its numbers change, and KubeRay has deleted its pods;
- the number is always from `fewest` to `most`, and each wait begins with `most`;
- the next number follows from the RayJob and the status alone.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta

from omni_operator.api.names import ROLLOUT_GROUP
from omni_operator.status.observed.observation import Asked, Attempt, ObservedRayJob, PoolSize
from omni_operator.status.observed.timestamps import EARLIEST

from .situation import AskForPods, ReserveQuota

MOST_STEPS = 7  # steps in a round: a large number of pods goes down by several at a time
MOST_DOUBLINGS = 3  # how often the pause may double
RECHECK = timedelta(seconds=30)


def find_request(
    attempt: Attempt, since: datetime | None, patience: timedelta, now: datetime
) -> tuple[tuple[AskForPods | ReserveQuota, ...], datetime | None]:
    """The request for the next number, if it is due, and the time of the next pass.

    An attempt whose pods were autoscaled before the queue took the quota back asks for the numbers of its start first.

    Args:
        since: when the status began to say that the attempt waits; None: it does not say so yet.
        patience: `Timeouts.queue`.
    """
    rayjob = attempt.rayjob
    # KubeRay has deleted all of its pods once it says so.
    if rayjob is None or rayjob.deleting or not (rayjob.suspended and rayjob.deployment == "Suspended"):
        return (), None
    if since is None:
        return (), None  # the status follows at once
    if restored := restore_numbers(rayjob, attempt.sizes):
        return (restored,), now + RECHECK
    size = attempt.sizes.get(ROLLOUT_GROUP)
    if size is None or not size.adjustable:
        return (), None
    # A time that is ahead is from before the clock was set back, and says nothing.
    begun = max((at for at in (rayjob.created, since) if at <= now), default=EARLIEST)
    asked = rayjob.asked
    if asked is None or asked.at < begun:
        if size.pods != size.most:  # as the queue admitted it before it took the quota back
            return (AskForPods(rayjob, size.pods, size.most, 0),), now + RECHECK
        asked = Asked(begun)
    pause = patience * 2 ** min(asked.rounds, MOST_DOUBLINGS)
    due = asked.at + pause
    if now < due <= now + pause:
        return (), due
    new = next_number(size)
    return (AskForPods(rayjob, size.pods, new, asked.rounds + (new == size.most)),), now + pause


def next_number(size: PoolSize) -> int:
    """The number of pods to ask for after `size.pods`: the next lower one of at most MOST_STEPS steps, or again all."""
    steps = min(MOST_STEPS, size.most - size.fewest)
    numbers = (size.most - (size.most - size.fewest) * step // steps for step in range(1, steps + 1))
    return next((number for number in numbers if number < size.pods), size.most)


def describe_request(size: PoolSize | None) -> str:
    """How many rollout pods an attempt that waits asks for; empty if it may only ask for all."""
    if size is None or not size.adjustable:
        return ""
    return f"asks for {size.pods} of {size.most} rollout pods (spec.rollout.minReplicas: {size.fewest})"


def describe_admission(size: PoolSize | None) -> str:
    """With how many rollout pods the queue admitted an attempt; empty if with all."""
    if size is None or not size.adjustable or size.pods >= size.most:
        return ""
    return f"admitted with {size.pods} of {size.most} rollout pods; the next attempt asks for all of them again"


def restore_numbers(rayjob: ObservedRayJob, sizes: Mapping[str, PoolSize]) -> ReserveQuota | None:
    """The first group of a RayJob that waits which does not have the number of pods that an attempt begins with."""
    for request in rayjob.requested:
        size = sizes.get(request.group)
        if size is not None and request.pods != size.pods:
            return ReserveQuota(rayjob, request, size.pods)
    return None
