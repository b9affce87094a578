"""PURE: what was observed of a job's children and heartbeat from its trainer, as values."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from omni_operator.api.status import TrainerWarning

from .reasons import FailureReason

HEAD = "head"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedRayJob:
    """An attempt's RayJob.

    Attributes:
        digest: of what was rendered when it was made.
        deployment: `status.jobDeploymentStatus`, empty before KubeRay looked at it.
        job: `status.jobStatus`, Ray's own word.
        reason: `status.reason`, KubeRay's word for a failure.
        suspended: `spec.suspend`, which a queue (Kueue) owns.
        started: when Ray's job started; None before.
    """

    name: str
    uid: str
    attempt: int
    created: datetime
    deleting: bool = False
    suspended: bool = False
    digest: str = ""
    deployment: str = ""
    job: str = ""
    reason: str = ""
    message: str = ""
    cluster: str = ""
    dashboard: str = ""
    started: datetime | None = None
    ended: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedRayCluster:
    """An attempt's RayCluster.

    Attributes:
        head_ready: condition `HeadPodReady`; None where KubeRay has not said it yet.
        head_since: when that condition last changed.
        provisioned: condition `RayClusterProvisioned`: all pods were ready once.
    """

    name: str
    uid: str
    attempt: int
    created: datetime
    deleting: bool = False
    head_ready: bool | None = None
    head_reason: str = ""
    head_since: datetime | None = None
    provisioned: bool = False
    desired_workers: int = 0
    ready_workers: int = 0
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingContainer:
    """A container that does not run: KubeRay's and the kubelet's words."""

    container: str
    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminatedContainer:
    """A container's last end."""

    container: str
    reason: str
    exit_code: int
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedPod:
    """A pod of an attempt.

    Attributes:
        group: the role: `head`, or the worker group's name.
        disrupted: reason and message of the condition `DisruptionTarget`, empty where it is not set.
        unschedulable: the scheduler's message, empty once a node is found.
        restarts: of the container that restarted most.
    """

    name: str
    uid: str
    attempt: int
    group: str
    created: datetime
    phase: str = "Pending"
    ready: bool = False
    deleting: bool = False
    node: str = ""
    disrupted: str = ""
    unschedulable: str = ""
    restarts: int = 0
    waiting: tuple[WaitingContainer, ...] = ()
    ended: tuple[TerminatedContainer, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Why an attempt may have failed, remembered because the pod that showed it may be gone by then."""

    reason: FailureReason
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerReport:
    """The trainer's newest report of an attempt; None where it said nothing of that.

    Attributes:
        at: when it arrived here, by this process's clock.
        version: weights that the trainer published last.
        samples: drawn since this attempt began.
        checkpoint: name of the newest one that can be resumed from.
        checkpoint_at: when the report of it arrived here.
        phase: what it waits for, before and between steps.
        error: what ended the trainer, in its words.
        warnings: of the trainer, the last one of each reason.
    """

    attempt: int
    at: datetime
    step: int | None = None
    total_steps: int | None = None
    reward_mean: float | None = None
    version: int | None = None
    min_version: int | None = None
    max_version: int | None = None
    synced_at: datetime | None = None
    sync_seconds: float | None = None
    step_seconds: float | None = None
    eta_seconds: float | None = None
    samples: int | None = None
    validation_reward: float | None = None
    images_per_second: float | None = None
    checkpoint: str | None = None
    checkpoint_step: int | None = None
    checkpoint_at: datetime | None = None
    phase: str | None = None
    error: str | None = None
    error_kind: FailureReason | None = None
    warnings: tuple[TrainerWarning, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """What the API server answered to the last apply of a child.

    Attributes:
        kind: `KubeRayNotInstalled`, `QuotaExceeded`, `ChildRefused`, `Forbidden`, `NamespaceTerminating` or
            `Unavailable`.
    """

    kind: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Everything that is known about a job besides the job itself.

    Attributes:
        leftovers: objects of an earlier job of the same name, which may still write its checkpoints.
    """

    rayjobs: tuple[ObservedRayJob, ...] = ()
    clusters: tuple[ObservedRayCluster, ...] = ()
    pods: tuple[ObservedPod, ...] = ()
    leftovers: int = 0
    evidence: tuple[tuple[int, Evidence], ...] = ()
    report: TrainerReport | None = None
    refusal: Refusal | None = field(default=None)

    def rayjob(self, attempt: int) -> ObservedRayJob | None:
        return next((observed for observed in self.rayjobs if observed.attempt == attempt), None)

    def cluster(self, attempt: int) -> ObservedRayCluster | None:
        """The attempt's RayCluster; of several (KubeRay replaces one that it deleted), one that stays."""
        found = sorted(
            (observed for observed in self.clusters if observed.attempt == attempt),
            key=lambda observed: observed.deleting,
        )
        return found[0] if found else None

    def pods_of(self, attempt: int) -> tuple[ObservedPod, ...]:
        return tuple(observed for observed in self.pods if observed.attempt == attempt)

    def evidence_of(self, attempt: int) -> tuple[Evidence, ...]:
        return tuple(evidence for number, evidence in self.evidence if number == attempt)

    def report_of(self, attempt: int) -> TrainerReport | None:
        return self.report if self.report and self.report.attempt == attempt else None

    @property
    def newest(self) -> int:
        """Number of the newest attempt of which anything exists; 0 without any."""
        numbers = [*(job.attempt for job in self.rayjobs), *(cluster.attempt for cluster in self.clusters)]
        return max(numbers, default=0)

    @property
    def empty(self) -> bool:
        """Nothing that holds accelerators or writes checkpoints is left."""
        return not (self.rayjobs or self.clusters or self.pods or self.leftovers)
