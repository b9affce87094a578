"""PURE: observed state of a job's objects and the reports of its trainer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from omni_operator.api.names import REWARD_GROUP
from omni_operator.api.status import TrainerWarning
from omni_operator.status.reasons.names import FailureReason

from .queue_history import QueueHistory

HEAD = "head"


@dataclass(frozen=True, slots=True)
class PoolSize:
    """Pods of a worker group that an attempt was created with, or that it asks its queue for.

    Attributes:
        group: name of the worker group.
        accelerators: accelerators of one pod.
        least: number of pods below which the trainer waits.
        fewest, most: range of pod numbers that the attempt may ask its queue for; 0: only `pods`.
    """

    group: str
    pods: int
    accelerators: int
    least: int = 1
    fewest: int = 0
    most: int = 0

    @property
    def adjustable(self) -> bool:
        """Whether the attempt may ask its queue for fewer pods."""
        return 0 < self.fewest < self.most


@dataclass(frozen=True, slots=True)
class RequestedPods:
    """Pods of a worker group in the spec of a RayJob, for which Kueue reserves quota.

    Attributes:
        index: place of the group in the spec.
    """

    group: str
    index: int
    pods: int


@dataclass(frozen=True, slots=True)
class Asked:
    """When an attempt asked its queue for another number of rollout pods, and how often it did for all of them."""

    at: datetime
    rounds: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedRayJob:
    """An attempt's RayJob.

    Attributes:
        digest: digest of the rendered object at its creation.
        made_of: hash of the spec fields that determine its pods; empty if its annotation was removed.
        orphaned: its controller is not the job any more.
        altered: message if other clients changed fields that the operator never changes; else empty.
        pools: its pods, the trainer's first; empty if their annotation was removed or is malformed.
        asked: None before it asked its queue for another number of pods than at its creation.
        requested: its worker groups, if it has the annotation by which Kueue lets their number of pods change.
        deployment: `status.jobDeploymentStatus`, empty before KubeRay's first pass.
        job: `status.jobStatus`, Ray's status of the job.
        reason: `status.reason`, KubeRay's reason of a failure.
        suspended: `spec.suspend`, which the queue (Kueue) sets.
        in_queue: it has the label of a Kueue queue: the job's label, or the label that Kueue adds in a namespace with
            a LocalQueue named `default`.
        started: start of Ray's job; None before.
        ended: end of Ray's job, by KubeRay's clock; in a pass, a failed job ends when the operator first sees it.
    """

    name: str
    uid: str
    attempt: int
    created: datetime
    deleting: bool = False
    suspended: bool = False
    in_queue: bool = False
    digest: str = ""
    made_of: str = ""
    orphaned: bool = False
    altered: str = ""
    pools: tuple[PoolSize, ...] = ()
    asked: Asked | None = None
    requested: tuple[RequestedPods, ...] = ()
    deployment: str = ""
    job: str = ""
    reason: str = ""
    message: str = ""
    cluster: str = ""
    dashboard: str = ""
    started: datetime | None = None
    ended: datetime | None = None

    def pool(self, group: str) -> PoolSize | None:
        """The pods of a worker group; None if it has none."""
        return next((size for size in self.pools if size.group == group), None)

    @property
    def waits(self) -> bool:
        """Whether Ray has no trainer pod for the program: one was lost when all were ready, and KubeRay replaces it."""
        return self.job == "PENDING"

    @property
    def runs(self) -> bool:
        """Whether Ray runs the program."""
        return self.job == "RUNNING"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodGroup:
    """The worker group of the rollout or the reward pods.

    Attributes:
        name: `ROLLOUT_GROUP` or `REWARD_GROUP`.
        index: its index in the RayCluster's spec.
        replicas: its number of pods.
        least, most: limits between which KubeRay keeps `replicas`.
        gated: Kueue keeps new pods from being scheduled until the queue has admitted them.
        template: digest of the part of the pod template that the job may change while pods run; empty if the operator
            that created the attempt set none.
        removed: names of the pods that KubeRay is to delete.
        replacing: when the replacement began, or when the last pods were deleted; None: no replacement.
        refused: digest of the template that was given up, because its pods did not become ready.
        refusal: why that template was given up.
    """

    name: str
    index: int
    replicas: int
    least: int = 1
    most: int = 1024
    gated: bool = False
    template: str = ""
    removed: tuple[str, ...] = ()
    replacing: datetime | None = None
    refused: str = ""
    refusal: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedRayCluster:
    """An attempt's RayCluster.

    Attributes:
        head_ready: condition `HeadPodReady`; None until KubeRay sets it.
        head_since: last change of that condition: by KubeRay's clock in the cache, in a pass by the operator's.
        provisioned: condition `RayClusterProvisioned`: all pods have been ready.
        groups: the worker groups of rollout pods, unless engines run in the trainer's pods, and of reward pods, if a
            judge has separate pods.
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
    groups: tuple[PodGroup, ...] = ()
    failure: str = ""

    def group(self, name: str) -> PodGroup | None:
        """The worker group of rollout or reward pods; None if there is none."""
        return next((found for found in self.groups if found.name == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingContainer:
    """A container that is not running, with reason and message of the kubelet."""

    container: str
    reason: str
    message: str = ""
    restarts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminatedContainer:
    """Last termination of a container.

    Attributes:
        ray: whether it is Ray's container; only that one says why a training failed.
    """

    container: str
    reason: str
    exit_code: int
    message: str = ""
    ray: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedPod:
    """A pod of an attempt.

    Attributes:
        group: the role: `head`, or the worker group's name.
        unreachable: its node does not answer, but may come back.
        disrupted: reason and message of the condition `DisruptionTarget`, empty if it is not set.
        unschedulable: the scheduler's message, or that the pod waits for a queue; empty once the pod has a node.
        ready: whether all its containers are ready, or at least Ray's.
        address: its IP address, empty before it has one.
        template: digest of the template that a rollout or reward pod was made from, as in its group; empty without one.
        waiting, ended: states of its containers; only Ray's once that one has started.
        sidecars: what is wrong with the other containers since then; empty if nothing is.
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
    unreachable: bool = False
    disrupted: str = ""
    unschedulable: str = ""
    address: str = ""
    template: str = ""
    waiting: tuple[WaitingContainer, ...] = ()
    ended: tuple[TerminatedContainer, ...] = ()
    sidecars: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Possible reason of a failure, remembered because its pod may be deleted by then."""

    pod: str
    reason: FailureReason
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerReport:
    """The trainer's newest report of an attempt; fields that it never reported are None.

    Attributes:
        at: time of arrival, by this process's clock.
        version: version of the last published weights.
        samples: samples generated in this attempt, since its trainer last started.
        unscored: samples that could not be scored, included in `samples`.
        images_folder: newest folder of images, in the run folder.
        checkpoint: name of the newest checkpoint.
        checkpoint_at: arrival of the report of that checkpoint.
        queue: number of samples still to generate.
        judge_queue: number of requests that the judge has not answered yet.
        replicas: lowest weight version of the serving replicas, by the address of their pod.
        judges: the same for the judge's replicas; always 0, because their weights never change.
        phase: what the trainer waits for, before and between steps.
        error: the trainer's message about the error that ended it.
        output: what was sent to the store last; None: nothing.
        output_failed: why the trainer could not send results, if it has sent none since.
        warnings: the last warning of each reason.
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
    unscored: int | None = None
    validation_reward: float | None = None
    held_out_scores: Mapping[str, float] | None = None
    images_per_second: float | None = None
    images_folder: str | None = None
    checkpoint: str | None = None
    checkpoint_step: int | None = None
    checkpoint_at: datetime | None = None
    queue: QueueHistory | None = None
    judge_queue: QueueHistory | None = None
    replicas: Mapping[str, int] | None = None
    judges: Mapping[str, int] | None = None
    phase: str | None = None
    error: str | None = None
    error_kind: FailureReason | None = None
    output: str | None = None
    output_failed: str | None = None
    warnings: tuple[TrainerWarning, ...] = ()

    def serving(self, group: str) -> Mapping[str, int] | None:
        """What was reported of the replicas in the pods of a group."""
        return self.judges if group == REWARD_GROUP else self.replicas

    def waiting(self, group: str) -> QueueHistory | None:
        """What was reported of the samples or requests that wait for the pods of a group."""
        return self.judge_queue if group == REWARD_GROUP else self.queue


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The API server's refusal of the last request.

    Attributes:
        kind: reason of conditions.
    """

    kind: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What exists of one attempt of a job, and what its trainer reported.

    Attributes:
        number: 0 before the first attempt, of which nothing exists.
        cluster: its RayCluster; of several, one that is not being deleted (KubeRay replaces deleted ones).
        evidence: possible reasons of its failure.
    """

    number: int = 0
    rayjob: ObservedRayJob | None = None
    cluster: ObservedRayCluster | None = None
    pods: tuple[ObservedPod, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    report: TrainerReport | None = None

    def size(self, group: str) -> PoolSize | None:
        """The pods of a worker group that it was created with, or asks its queue for; None if this is not known."""
        return self.rayjob.pool(group) if self.rayjob else None

    def group(self, name: str) -> PodGroup | None:
        """The worker group of rollout or reward pods; None if there is none."""
        return self.cluster.group(name) if self.cluster else None

    def pods_of(self, group: str) -> list[ObservedPod]:
        return [pod for pod in self.pods if pod.group == group]

    def ready_pods(self, group: str) -> int:
        """Number of ready pods of a group that are not being deleted."""
        return sum(pod.ready and not pod.deleting for pod in self.pods_of(group))

    def waiting(self, group: str) -> QueueHistory | None:
        """The samples or requests that wait for the pods of a group; None if nothing was reported of these pods."""
        history = self.report.waiting(group) if self.report else None
        # A queue may preempt an attempt and admit it again: what waited before says nothing of its new pods.
        return None if history and self.cluster and history.at < self.cluster.created else history

    @property
    def head_ready(self) -> bool:
        """Whether Ray's container of the head is ready. KubeRay's condition asks it of all containers."""
        return (self.cluster is not None and self.cluster.head_ready is True) or self.ready_pods(HEAD) > 0

    @property
    def ready_workers(self) -> int:
        """Number of worker pods whose Ray container is ready; KubeRay does not count one with a failed sidecar."""
        ready = sum(pod.ready and not pod.deleting and pod.group != HEAD for pod in self.pods)
        return max(ready, self.cluster.ready_workers) if self.cluster else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """All observations about a job.

    Attributes:
        leftovers: number of objects that an earlier job of this name, or a forgotten attempt, left to garbage
            collection; they may still write its checkpoints.
        last: number of the newest attempt that was ever observed; 0 if there was none.
        report: the trainer's newest report, of any attempt.
    """

    rayjobs: tuple[ObservedRayJob, ...] = ()
    clusters: tuple[ObservedRayCluster, ...] = ()
    pods: tuple[ObservedPod, ...] = ()
    leftovers: int = 0
    last: int = 0
    evidence: tuple[tuple[int, Evidence], ...] = ()
    report: TrainerReport | None = None

    def attempt(self, number: int) -> Attempt:
        """What exists of one attempt."""
        clusters = sorted((one for one in self.clusters if one.attempt == number), key=lambda one: one.deleting)
        return Attempt(
            number=number,
            rayjob=next((one for one in self.rayjobs if one.attempt == number), None),
            cluster=clusters[0] if clusters else None,
            pods=tuple(pod for pod in self.pods if pod.attempt == number),
            evidence=tuple(found for attempt, found in self.evidence if attempt == number),
            report=self.report if self.report and self.report.attempt == number else None,
        )

    @property
    def newest(self) -> int:
        """Number of the newest attempt, also of one that was deleted before the status had it; 0 if there is none."""
        numbers = [*(job.attempt for job in self.rayjobs), *(cluster.attempt for cluster in self.clusters)]
        return max(self.last, *numbers, 0)

    @property
    def empty(self) -> bool:
        """Whether no object is left that uses accelerators or writes checkpoints."""
        return not (self.rayjobs or self.clusters or self.pods or self.leftovers)
