"""PURE: situations that a job can be in, and the steps of a pass.

Every pass determines the situation from the observed objects. It is never stored, so a job cannot get stuck in one.
"""

from dataclasses import dataclass
from datetime import datetime

from omni_operator.status.observed.observation import ObservedRayCluster, ObservedRayJob, PodGroup, RequestedPods
from omni_operator.status.reasons.names import Action, FailureReason

from .verdict import InProgress, Succeeded


@dataclass(frozen=True, slots=True)
class EnsureShared:
    """Create or correct the objects that all attempts share.

    Attributes:
        required: an attempt is about to start, and none does without them: a pause between corrections does not count.
    """

    required: bool = False


@dataclass(frozen=True, slots=True)
class ProtectPods:
    """Create the PodDisruptionBudget of an attempt, once: an administrator may delete it for a drain.

    Attributes:
        trainers: number of trainer pods.
    """

    cluster: ObservedRayCluster
    trainers: int


@dataclass(frozen=True, slots=True)
class CreateAttempt:
    """Create the RayJob of an attempt."""

    number: int


@dataclass(frozen=True, slots=True)
class DeleteRayJob:
    """Delete a RayJob; KubeRay and garbage collection delete the rest of the attempt."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class DeleteSelf:
    """Delete the job after ttlSecondsAfterFinished."""


@dataclass(frozen=True, slots=True)
class RequestCheckpoint:
    """Request a checkpoint in the answer to the trainer's next report."""

    since: datetime


@dataclass(frozen=True, slots=True)
class GroupChange:
    """A new number of pods for the worker group `group`, at a place in the spec of a RayCluster or RayJob.

    Attributes:
        old: the present number; 0: any.
        removed: names of the pods to delete, with those that are leaving already; KubeRay chooses others that are
            needed for the new number.
        limits: minReplicas and maxReplicas, between which KubeRay keeps the number; None: they stay.
    """

    index: int
    group: str
    old: int
    new: int
    removed: tuple[str, ...] = ()
    limits: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class ScaleGroup:
    """Change the number of rollout or reward pods of a running attempt, or put right the limits of a group."""

    cluster: ObservedRayCluster
    change: GroupChange


@dataclass(frozen=True, slots=True)
class AskForPods:
    """Ask the queue for another number of rollout pods of an attempt that it has not admitted.

    Attributes:
        old, new: numbers of pods.
        rounds: how often the attempt has asked for all of them by then, from 0.
    """

    rayjob: ObservedRayJob
    old: int
    new: int
    rounds: int


@dataclass(frozen=True, slots=True)
class ReserveQuota:
    """Have Kueue reserve quota for another number of pods of a worker group, by the number in the RayJob.

    Attributes:
        request: the group, with its present number. new: the new one.
    """

    rayjob: ObservedRayJob
    request: RequestedPods
    new: int


@dataclass(frozen=True, slots=True)
class StartReplacement:
    """Give new pods of a group of a running attempt the template of the current spec."""

    cluster: ObservedRayCluster
    group: PodGroup


@dataclass(frozen=True, slots=True)
class ReplacePods:
    """Have KubeRay replace pods of a group of a running attempt.

    Attributes:
        removed: names of the pods, with those that are leaving already.
    """

    cluster: ObservedRayCluster
    group: PodGroup
    removed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FinishReplacement:
    """Forget the template before: all pods of a group have the new one, and serve."""

    cluster: ObservedRayCluster
    group: PodGroup


@dataclass(frozen=True, slots=True)
class GiveUpTemplate:
    """Return a group to its previous template, because pods of the new one do not serve in time.

    Attributes:
        text: why, for the condition.
    """

    cluster: ObservedRayCluster
    group: PodGroup
    text: str = ""


ReplacementStep = StartReplacement | ReplacePods | FinishReplacement | GiveUpTemplate
Step = (
    ReplacementStep
    | ScaleGroup
    | AskForPods
    | ReserveQuota
    | EnsureShared
    | ProtectPods
    | CreateAttempt
    | DeleteRayJob
    | DeleteSelf
    | RequestCheckpoint
)


@dataclass(frozen=True, slots=True)
class Finished:
    """The job succeeded or finally failed in an earlier pass."""


@dataclass(frozen=True, slots=True)
class Creating:
    """An attempt is being created."""

    attempt: int


@dataclass(frozen=True, slots=True)
class BetweenAttempts:
    """Between two attempts: objects of the last one are being deleted, or the pause before the next one."""

    text: str


@dataclass(frozen=True, slots=True)
class Suspending:
    """The job is being suspended.

    Attributes:
        reason: `CheckpointRequested` while the trainer saves, then `Stopping`.
    """

    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class Suspended:
    """The job is suspended: it has no pods."""


@dataclass(frozen=True, slots=True)
class Failing:
    """The attempt failed in this pass.

    Attributes:
        why: why no other attempt follows; empty if one does.
    """

    reason: FailureReason
    text: str
    action: Action
    why: str = ""

    @property
    def counted(self) -> bool:
        """Whether it counts against `spec.backoffLimit`."""
        return self.action is not Action.RETRY_IGNORE_LIMIT

    @property
    def is_disruption(self) -> bool:
        """Whether it counts against `spec.disruptionLimit`."""
        return self.reason == "Preempted" and not self.counted


@dataclass(frozen=True, slots=True)
class SpecRefused:
    """The spec is invalid, or this cluster's policy refuses it, and the job can only wait."""

    text: str


Unfinished = Creating | InProgress | BetweenAttempts | Suspending | Suspended | Succeeded | Failing
Situation = Finished | SpecRefused | Unfinished


@dataclass(frozen=True, slots=True)
class Decision:
    """Result of a decision: the situation, and the steps of the pass in order.

    Attributes:
        wake: time of the next pass if no event comes first; None: at the next resync.
    """

    situation: Situation
    steps: tuple[Step, ...] = ()
    wake: datetime | None = None
