"""PURE: where a job stands, as one value of several kinds, and the steps that bring it on.

A situation is worked out in every pass from what is there; it is never stored, so nothing can be stuck in one.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from .reasons import Action, FailureReason
from .verdict import InProgress


@dataclass(frozen=True, slots=True)
class AddFinalizer:
    """Put our finalizer on the job."""


@dataclass(frozen=True, slots=True)
class RemoveFinalizer:
    """Take our finalizer off the job."""


@dataclass(frozen=True, slots=True)
class ApplyShared:
    """Make, or put right, the objects that all attempts share."""


@dataclass(frozen=True, slots=True)
class CreateAttempt:
    """Make the RayJob of an attempt."""

    number: int


@dataclass(frozen=True, slots=True)
class DeleteRayJob:
    """Delete a RayJob; KubeRay and garbage collection take the rest of the attempt."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class DeleteSelf:
    """Delete the job: its time to live is over."""


@dataclass(frozen=True, slots=True)
class RequestCheckpoint:
    """Tell the trainer, in the answer to its next report, to save a checkpoint."""

    since: datetime


Step = AddFinalizer | RemoveFinalizer | ApplyShared | CreateAttempt | DeleteRayJob | DeleteSelf | RequestCheckpoint


@dataclass(frozen=True, slots=True)
class Invalid:
    """The spec cannot be used; what runs is left alone."""

    text: str


@dataclass(frozen=True, slots=True)
class Deleting:
    """The job is being deleted."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The job succeeded or failed for good in an earlier pass."""


@dataclass(frozen=True, slots=True)
class Creating:
    """An attempt is being made."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Active:
    """An attempt goes on."""

    attempt: int
    going: InProgress


@dataclass(frozen=True, slots=True)
class BetweenAttempts:
    """Between two attempts: leftovers of the last one, or the pause before the next one."""

    text: str


@dataclass(frozen=True, slots=True)
class Suspending:
    """The job gives its devices back.

    Attributes:
        reason: `CheckpointRequested` while the trainer saves, then `Stopping`.
        since: when the suspension began.
    """

    reason: str
    text: str
    since: datetime


@dataclass(frozen=True, slots=True)
class Suspended:
    """The job holds nothing."""


@dataclass(frozen=True, slots=True)
class Succeeding:
    """The running attempt succeeded just now."""

    attempt: int
    at: datetime


@dataclass(frozen=True, slots=True)
class Failing:
    """An attempt failed just now.

    Attributes:
        counted: whether it counts against `spec.backoffLimit`.
        final: no other attempt follows.
        why: why none follows; empty where one does.
    """

    attempt: int
    reason: FailureReason
    text: str
    action: Action
    counted: bool
    final: bool
    why: str = ""


Situation = (
    Invalid | Deleting | Finished | Creating | Active | BetweenAttempts | Suspending | Suspended | Succeeding | Failing
)


@dataclass(frozen=True, slots=True)
class Decision:
    """What a pass does: the steps, in their order, and where the job stands.

    Attributes:
        wake: when to look again though nothing was heartbeat; None: at the next resync.
    """

    situation: Situation
    steps: tuple[Step, ...] = ()
    wake: datetime | None = None
