"""PURE: state of an attempt: in progress, succeeded or failed, and why.

KubeRay does not report a lost head: its RayJob stays `Running` and its RayCluster `ready`. The operator detects it from
the RayCluster's condition `HeadPodReady` turning False after it was True once.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from omni_operator.api.names import REWARD_GROUP, ROLLOUT_GROUP, ends_no_attempt, is_scorer_group
from omni_operator.status.observed import evidence
from omni_operator.status.observed.observation import HEAD, Attempt, ObservedRayJob
from omni_operator.status.reasons.names import FailureReason

from .snapshot import Snapshot


class Stage(str, Enum):
    """Stage of an attempt."""

    QUEUED = "Queued"
    STARTING = "Starting"
    RUNNING = "Running"


@dataclass(frozen=True, slots=True)
class InProgress:
    """The attempt is in progress.

    Attributes:
        problem_reason, problem: what keeps it from running; empty if nothing does. In a queue there is no reason.
        wake: time of the next pass if no event comes first.
    """

    stage: Stage
    problem_reason: str = ""
    problem: str = ""
    wake: datetime | None = None


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The attempt succeeded."""

    at: datetime


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """The attempt failed, or must be stopped."""

    reason: FailureReason
    text: str


Verdict = InProgress | Succeeded | AttemptFailed
_QUEUED = frozenset({"Suspending", "Suspended"})
_DEADLINES = ("DeadlineExceeded", "PreRunningDeadlineExceeded")
_OF_LOST_PODS = ("HeadLost", "WorkerLost")


# An attempt that never ran in its time failed by what it waited for, where that is known.
_LATE: dict[str, FailureReason] = {"Unschedulable": "Unschedulable", "QuotaExceeded": "QuotaExceeded"}


def judge_attempt(job: Snapshot) -> Verdict | None:
    """State of the current attempt; None if the first or the next attempt is due."""
    attempt = job.attempt
    late = None
    if job.deadline is not None and job.now >= job.deadline:
        limit = _seconds(job.facts.active_deadline)
        late = AttemptFailed("DeadlineExceeded", f"ran longer than spec.activeDeadlineSeconds ({limit})")
    if attempt.number == 0:
        return None
    if any(failure.attempt == attempt.number for failure in job.status.failures):
        return late
    rayjob = attempt.rayjob
    if job.was_stopped and (rayjob is None or rayjob.deleting):
        return None
    if rayjob is None:
        return AttemptFailed("ChildDeleted", f"the RayJob of attempt {attempt.number} was deleted, not by the operator")
    verdict = _judge(job, rayjob)
    return late if late and isinstance(verdict, InProgress) else verdict


def _judge(job: Snapshot, rayjob: ObservedRayJob) -> Verdict:
    if rayjob.deployment == "Complete" and rayjob.job == "SUCCEEDED":
        return Succeeded(min(rayjob.ended or job.now, job.now))
    if rayjob.deleting:
        return AttemptFailed("ChildDeleted", f"RayJob {rayjob.name} was deleted, not by the operator")
    if rayjob.deployment in ("Failed", "Complete", "ValidationFailed"):
        stated = AttemptFailed(*job.attempt.stated_failure)
        certain = rayjob.deployment == "ValidationFailed" or rayjob.reason in _DEADLINES
        failed = stated if certain else _lost_pod(job.attempt) or stated
        # Ray notices a lost node before Kubernetes does, which then says so.
        late = (rayjob.ended or job.now) + job.timeouts.head
        waits = failed.reason in _OF_LOST_PODS and job.now < late
        return InProgress(Stage.RUNNING, failed.reason, failed.text, late) if waits else failed
    queued = rayjob.suspended or rayjob.deployment in _QUEUED
    if not queued and (lost := _head_lost(job, rayjob)):
        return lost
    if rayjob.deployment == "Running" and not rayjob.waits:
        return _judge_running(job.attempt, job.timeouts.restarts)
    return InProgress(Stage.QUEUED) if queued else _judge_starting(job, rayjob)


def _lost_pod(attempt: Attempt) -> AttemptFailed | None:
    """What happened to a pod, which explains more than the error that the trainer saw."""
    for finding in attempt.evidence:
        return AttemptFailed(finding.reason, finding.text)
    for pod in attempt.pods:
        if pod.unreachable and not ends_no_attempt(pod.group):
            return AttemptFailed("Preempted", f"node {pod.node} of pod {pod.name} does not answer")
    return None


def _head_lost(job: Snapshot, rayjob: ObservedRayJob) -> AttemptFailed | InProgress | None:
    """Verdict on a head that was ready and is not: in progress while it may recover."""
    cluster = job.attempt.cluster
    # KubeRay submits a job, and marks a cluster provisioned, only after the head was ready.
    once_ready = cluster is not None and (cluster.provisioned or rayjob.deployment == "Running")
    if cluster is None or cluster.head_ready is not False or not once_ready:
        return None
    if cluster.head_reason != "HeadPodNotFound" and job.attempt.head_ready:
        return None  # only a container that is not Ray's is not ready
    heads = job.attempt.group_pods[HEAD]
    text = f"the Ray head of {cluster.name} is not ready: {cluster.head_reason or 'no reason given'}"
    ended = not heads or any(pod.phase in ("Failed", "Succeeded") or pod.deleting for pod in heads)
    late = (cluster.head_since or job.now) + job.timeouts.head
    if cluster.head_reason == "HeadPodNotFound" or ended or job.now >= late:
        return _lost_pod(job.attempt) or AttemptFailed("HeadLost", text)
    return InProgress(Stage.RUNNING, "HeadNotReady", text, late)


def _judge_running(attempt: Attempt, restarts: int) -> Verdict:
    for pod in attempt.pods:
        # KubeRay replaces rollout pods, and the trainer does without them; also without a judge or scorer of several.
        others = pod.group == REWARD_GROUP or is_scorer_group(pod.group)
        if others and attempt.ready[pod.group]:
            continue
        if pod.group != ROLLOUT_GROUP and (text := pod.crash_loop_error(restarts)):
            return AttemptFailed("WorkerLost", text)
    return InProgress(Stage.RUNNING)


def _judge_starting(job: Snapshot, rayjob: ObservedRayJob) -> Verdict:
    """State of an attempt that Ray does not run yet: what its pods wait for, and until when they may."""
    now = job.now
    timeouts = job.timeouts
    wakes: list[datetime] = []
    missing: list[datetime] = []  # since when pods find no node, or a quota refuses them
    kind = problem = ""
    for pod in job.attempt.pods:
        if text := pod.pull_error:
            hopeless = any(wait.reason in evidence.PERMANENT_PULL_ERRORS for wait in pod.waiting)
            if hopeless or now >= pod.created + timeouts.image:
                return AttemptFailed("ImagePullFailed", text)
            wakes.append(pod.created + timeouts.image)
            kind = "ImagePullBackOff"
            problem = text
        elif text := pod.crash_loop_error(timeouts.restarts):
            return AttemptFailed("StartFailed", text)
        elif obstacle := pod.obstacle:
            kind, problem = obstacle
        elif pod.unschedulable and not problem:
            kind = "Unschedulable"
            problem = evidence.shorten(f"pod {pod.name}: {pod.unschedulable}")
        elif pod.sidecars and not problem:
            kind = evidence.SIDECAR
            problem = pod.sidecar_problem
        if pod.unschedulable:
            missing.append(pod.created)
    cluster = job.attempt.cluster
    if cluster and cluster.failure and not problem:
        kind = "QuotaExceeded" if cluster.lacks_quota else "PodsRefused"
        problem = evidence.shorten(cluster.failure)
        missing.append(cluster.created)
    # From then on the attempt may start without these pods.
    wakes.extend(late for since in missing if (late := since + timeouts.queue) > now)
    limit = job.facts.running_deadline
    if limit is not None:
        since = now if job.queued_since else job.admitted_at  # the queue has admitted it since the status was written
        deadline = max(rayjob.created, since or rayjob.created) + limit
        if now >= deadline:
            because = f": {problem}" if problem else ""
            text = f"not running after spec.preRunningDeadlineSeconds ({_seconds(limit)}){because}"
            return AttemptFailed(_LATE.get(kind, "PreRunningDeadlineExceeded"), evidence.shorten(text))
        wakes.append(deadline)
    return InProgress(Stage.STARTING, kind, problem, min(wakes, default=None))


def _seconds(span: timedelta | None) -> int:
    return int(span.total_seconds()) if span else 0
