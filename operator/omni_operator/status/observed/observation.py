"""PURE: observed state of a job's objects and the reports of its trainer."""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from omni_operator.api.names import REWARD_GROUP, ROLLOUT_GROUP
from omni_operator.api.status import TrainerWarning
from omni_operator.status.reasons.names import FailureReason

from .evidence import CONFIG_ERROR, PULL_ERRORS, is_refused_by_quota, killed_program, reason_from_text, shorten
from .queue_history import QueueHistory
from .timestamps import EARLIEST

HEAD = "head"
# the scheduler's messages
_UNBOUND_CLAIM = "unbound immediate PersistentVolumeClaims"
_MISSING_CLAIM = re.compile(r'persistentvolumeclaim "[^"]*" not found')


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

    @property
    def lacks_quota(self) -> bool:
        """Whether a ResourceQuota of the namespace refuses pods."""
        return is_refused_by_quota(self.failure)

    def group(self, name: str) -> PodGroup | None:
        """The worker group of rollout or reward pods; None if there is none."""
        return next((group for group in self.groups if group.name == name), None)


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
class Evidence:
    """Possible reason of a failure, remembered because its pod may be deleted by then."""

    pod: str
    reason: FailureReason
    text: str


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

    @property
    def evidence(self) -> Evidence | None:
        """Reason of a failure, kept after the pod is gone; None if there is none."""
        if self.disrupted:
            return Evidence(pod=self.name, reason="Preempted", text=shorten(f"pod {self.name}: {self.disrupted}"))
        for end in self.ended:
            if end.ray and end.reason == "OOMKilled":
                text = f"container {end.container} of pod {self.name} was killed because it ran out of memory"
                return Evidence(pod=self.name, reason="OutOfMemory", text=text)
            reason = reason_from_text(end.message) if end.ray and end.exit_code else None
            if reason:
                return Evidence(pod=self.name, reason=reason, text=shorten(f"pod {self.name}: {end.message}"))
        return None

    @property
    def pull_error(self) -> str:
        """Why the pod cannot pull an image; empty if it can."""
        for wait in self.waiting:
            if wait.reason in PULL_ERRORS:
                text = f"pod {self.name}, container {wait.container}: {wait.reason}: {wait.message}"
                return shorten(text.rstrip(": "))
        return ""

    @property
    def obstacle(self) -> tuple[str, str] | None:
        """Reason and message of a mistake that keeps the pod from starting, such as a missing Secret or claim."""
        for wait in self.waiting:
            if wait.reason == CONFIG_ERROR:
                text = f"pod {self.name}, container {wait.container}: {wait.message}; correct it and the pod starts"
                return CONFIG_ERROR, shorten(text)
        if match := _MISSING_CLAIM.search(self.unschedulable):
            return "ClaimNotFound", f"pod {self.name}: {match[0]}; create it, or correct its name in the job"
        if _UNBOUND_CLAIM in self.unschedulable:  # a claim has no volume, as in a cluster without a storage class
            how = "kubectl get persistentvolumeclaims names the one that is Pending"
            return "ClaimNotBound", shorten(f"pod {self.name}: {self.unschedulable}; {how}")
        return None

    @property
    def sidecar_problem(self) -> str:
        """What is wrong with containers that are not Ray's; empty if nothing is."""
        return shorten(f"pod {self.name}, {self.sidecars}") if self.sidecars else ""

    def crash_loop_error(self, restarts: int) -> str:
        """Why a container keeps restarting; empty if none does."""
        for wait in self.waiting:
            if wait.reason == "CrashLoopBackOff" and wait.restarts >= restarts:
                ends = (end for end in self.ended if end.container == wait.container)
                exits = "".join(f": exit code {end.exit_code} {end.message}".rstrip() for end in ends)
                return shorten(f"container {wait.container} of pod {self.name} restarted {wait.restarts} times{exits}")
        return ""


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

    @property
    def sizes(self) -> Mapping[str, PoolSize]:
        """By worker group, the pods that it was created with or asks its queue for; empty if this is not known."""
        return {size.group: size for size in self.rayjob.pools} if self.rayjob else {}

    @property
    def groups(self) -> Mapping[str, PodGroup]:
        """The worker groups of its RayCluster, by name."""
        return {group.name: group for group in reversed(self.cluster.groups)} if self.cluster else {}

    @property
    def group_pods(self) -> Mapping[str, list[ObservedPod]]:
        """The pods of each group."""
        pods: defaultdict[str, list[ObservedPod]] = defaultdict(list)
        for pod in self.pods:
            pods[pod.group].append(pod)
        return pods

    @property
    def ready(self) -> Counter[str]:
        """Number of ready pods of each group that are not being deleted."""
        return Counter(pod.group for pod in self.pods if pod.ready and not pod.deleting)

    @property
    def queues(self) -> Mapping[str, QueueHistory]:
        """What was reported of the samples or requests that wait for the pods of a group."""
        reported = {ROLLOUT_GROUP: self.report.queue, REWARD_GROUP: self.report.judge_queue} if self.report else {}
        # A queue may preempt an attempt and admit it again: what waited before says nothing of its new pods.
        since = self.cluster.created if self.cluster else EARLIEST
        return {group: history for group, history in reported.items() if history and history.at >= since}

    @property
    def versions(self) -> Mapping[str, Mapping[str, int] | None]:
        """By group, what was reported of the replicas in its pods: lowest weight versions by address of the pod."""
        return {ROLLOUT_GROUP: self.report.replicas, REWARD_GROUP: self.report.judges} if self.report else {}

    @property
    def stated_failure(self) -> tuple[FailureReason, str]:
        """Reason and message of the end of the RayJob, as KubeRay, Ray or the trainer state it."""
        rayjob = self.rayjob
        if rayjob is None:
            return "ChildDeleted", "the RayJob was deleted"
        message = shorten(rayjob.message or rayjob.reason or rayjob.job or "KubeRay gave no reason")
        if rayjob.deployment == "ValidationFailed":
            return "InvalidConfig", f"KubeRay refused the RayJob: {message}"
        if rayjob.reason == "DeadlineExceeded":
            return "DeadlineExceeded", message
        if rayjob.reason == "PreRunningDeadlineExceeded":
            return "PreRunningDeadlineExceeded", message
        if rayjob.reason in ("JobStatusCheckTimeoutExceeded", "JobDeploymentStatusTransitionGracePeriodExceeded"):
            return "HeadLost", f"KubeRay lost contact to the Ray head: {message}"
        if self.report and self.report.error:
            kind = self.report.error_kind or reason_from_text(self.report.error) or "ApplicationError"
            return kind, shorten(self.report.error)
        if killed := killed_program(rayjob.message):
            return "OutOfMemory", killed
        if rayjob.job == "STOPPED":
            return "ApplicationError", f"the Ray job was stopped, not by the operator: {message}"
        return reason_from_text(message) or "ApplicationError", message

    @property
    def replaces_rollouts(self) -> bool:
        """Whether rollout pods are missing only because they are being replaced, also if that is paused or given up.

        Every other pod is ready, or a new one that starts. A place without a pod counts as one of the replacement.
        """
        group = self.groups.get(ROLLOUT_GROUP)
        if group is None or not group.template or not group.removed:
            return False
        pods = self.group_pods[ROLLOUT_GROUP]
        if not group.replacing and all(pod.template == group.template for pod in pods):
            return False  # the last replacement is over
        others = [pod for pod in pods if pod.name not in group.removed]
        return all(not pod.deleting and (pod.ready or pod.template == group.template) for pod in others)

    @property
    def sidecar_problem(self) -> str:
        """What is wrong with containers that are not Ray's, of the first pod with any; empty if nothing is."""
        return next((pod.sidecar_problem for pod in sorted(self.pods, key=lambda pod: pod.name) if pod.sidecars), "")

    @property
    def head_ready(self) -> bool:
        """Whether Ray's container of the head is ready. KubeRay's condition asks it of all containers."""
        return (self.cluster is not None and self.cluster.head_ready is True) or self.ready[HEAD] > 0

    @property
    def ready_workers(self) -> int:
        """Number of worker pods whose Ray container is ready; KubeRay does not count one with a failed sidecar."""
        ready = self.ready.total() - self.ready[HEAD]
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
        clusters = sorted(
            (cluster for cluster in self.clusters if cluster.attempt == number), key=lambda cluster: cluster.deleting
        )
        return Attempt(
            number=number,
            rayjob=next((rayjob for rayjob in self.rayjobs if rayjob.attempt == number), None),
            cluster=clusters[0] if clusters else None,
            pods=tuple(pod for pod in self.pods if pod.attempt == number),
            evidence=tuple(entry for attempt, entry in self.evidence if attempt == number),
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
