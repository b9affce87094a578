"""PURE: how an attempt stands.

KubeRay says nothing about a lost head (its RayJob stays `Running`) and keeps `state: ready` on the RayCluster, so a
lost head is read from the RayCluster's condition `HeadPodReady`, after it was once true.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from . import evidence
from .job_facts import JobFacts
from .observation import HEAD, Observation, ObservedRayCluster, ObservedRayJob
from .reasons import FailureReason
from .timeouts import Timeouts


class Stage(str, Enum):
    """How far an attempt came."""

    QUEUED = "Queued"
    STARTING = "Starting"
    RUNNING = "Running"


@dataclass(frozen=True, slots=True)
class InProgress:
    """The attempt goes on.

    Attributes:
        problem: what keeps it from running, in words; empty where nothing does.
        wake: when to look again though nothing was heartbeat.
    """

    stage: Stage
    problem_reason: str = ""
    problem: str = ""
    wake: datetime | None = None


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The attempt did what it was to do."""

    at: datetime


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """The attempt ended without success, or has to be ended."""

    reason: FailureReason
    text: str


Verdict = InProgress | Succeeded | AttemptFailed
_QUEUED = frozenset({"Suspending", "Suspended"})
_LOST = frozenset({"JobStatusCheckTimeoutExceeded", "JobDeploymentStatusTransitionGracePeriodExceeded"})


# An attempt that never ran in its time failed by what it waited for, where that is known.
_LATE = {"Unschedulable": FailureReason.UNSCHEDULABLE, "QuotaExceeded": FailureReason.QUOTA_EXCEEDED}


def classify_attempt(
    facts: JobFacts, observed: Observation, attempt: int, admitted: datetime | None, timeouts: Timeouts, now: datetime
) -> Verdict:
    """How attempt number `attempt` stands.

    Args:
        admitted: since when a queue lets it run; None: from its creation.
    """
    rayjob = observed.rayjob(attempt)
    if rayjob is None:
        return AttemptFailed(
            FailureReason.CHILD_DELETED, f"the RayJob of attempt {attempt} is gone; nothing of ours deleted it"
        )
    if rayjob.deployment == "Complete" and rayjob.job == "SUCCEEDED":
        return Succeeded(rayjob.ended or now)
    if rayjob.deleting:
        return AttemptFailed(FailureReason.CHILD_DELETED, f"somebody deleted RayJob {rayjob.name}")
    if rayjob.deployment in ("Failed", "Complete", "ValidationFailed"):
        return _ended(rayjob, observed)
    queued = rayjob.suspended or rayjob.deployment in _QUEUED
    if not queued and (lost := _head_lost(rayjob, observed, timeouts, now)):
        return lost if isinstance(lost, AttemptFailed) else InProgress(Stage.RUNNING, "HeadNotReady", lost[0], lost[1])
    if rayjob.deployment == "Running":
        return _running(observed, attempt, timeouts)
    return InProgress(Stage.QUEUED) if queued else _starting(facts, rayjob, observed, admitted, timeouts, now)


def _ended(rayjob: ObservedRayJob, observed: Observation) -> AttemptFailed:
    """Why KubeRay ended the RayJob."""
    said = evidence.shorten(rayjob.message or rayjob.reason or rayjob.job or "KubeRay gave no reason")
    report = observed.report_of(rayjob.attempt)
    if rayjob.deployment == "ValidationFailed":
        return AttemptFailed(FailureReason.INVALID_CONFIG, f"KubeRay refused the RayJob: {said}")
    if rayjob.reason == "DeadlineExceeded":
        return AttemptFailed(FailureReason.DEADLINE_EXCEEDED, said)
    if rayjob.reason == "PreRunningDeadlineExceeded":
        return AttemptFailed(FailureReason.PRE_RUNNING_DEADLINE_EXCEEDED, said)
    # A pod that was killed explains more than what the trainer saw of it.
    for found in observed.evidence_of(rayjob.attempt):
        return AttemptFailed(found.reason, found.text)
    if rayjob.reason in _LOST:
        return AttemptFailed(FailureReason.HEAD_LOST, f"KubeRay lost touch with the Ray head: {said}")
    if report and report.error:
        kind = report.error_kind or evidence.reason_from_text(report.error) or FailureReason.APPLICATION_ERROR
        return AttemptFailed(kind, evidence.shorten(report.error))
    if rayjob.job == "STOPPED":
        return AttemptFailed(FailureReason.APPLICATION_ERROR, f"somebody stopped the Ray job: {said}")
    return AttemptFailed(evidence.reason_from_text(said) or FailureReason.APPLICATION_ERROR, said)


def _head_lost(
    rayjob: ObservedRayJob, observed: Observation, timeouts: Timeouts, now: datetime
) -> AttemptFailed | tuple[str, datetime] | None:
    """A verdict on a head that once was ready and is not; words and a time to look again while it may come back."""
    cluster = observed.cluster(rayjob.attempt)
    if cluster is None or cluster.head_ready is not False or not _head_once_ready(rayjob, cluster):
        return None
    heads = [pod for pod in observed.pods_of(rayjob.attempt) if pod.group == HEAD]
    text = f"the Ray head of {cluster.name} is not ready: {cluster.head_reason or 'no reason given'}"
    ended = not heads or any(pod.phase in ("Failed", "Succeeded") or pod.deleting for pod in heads)
    since = cluster.head_since or now
    if cluster.head_reason == "HeadPodNotFound" or ended or now >= since + timeouts.head:
        for found in observed.evidence_of(rayjob.attempt):
            return AttemptFailed(found.reason, found.text)
        return AttemptFailed(FailureReason.HEAD_LOST, text)
    return text, since + timeouts.head


def _head_once_ready(rayjob: ObservedRayJob, cluster: ObservedRayCluster) -> bool:
    """KubeRay submits a job, and calls a cluster provisioned, only after the head was ready."""
    return cluster.provisioned or rayjob.deployment == "Running"


def _running(observed: Observation, attempt: int, timeouts: Timeouts) -> Verdict:
    for pod in observed.pods_of(attempt):
        if text := evidence.crash_loop_error(pod, timeouts.restarts):
            return AttemptFailed(FailureReason.WORKER_LOST, text)
    return InProgress(Stage.RUNNING)


def _starting(
    facts: JobFacts,
    rayjob: ObservedRayJob,
    observed: Observation,
    admitted: datetime | None,
    timeouts: Timeouts,
    now: datetime,
) -> Verdict:
    """An attempt whose job Ray does not run yet: what its pods wait for, and for how long that may go on."""
    wakes: list[datetime] = []
    kind = problem = ""
    for pod in observed.pods_of(rayjob.attempt):
        if text := evidence.image_pull_error(pod):
            hopeless = any(wait.reason in evidence.PERMANENT_PULL_ERRORS for wait in pod.waiting)
            if hopeless or now >= pod.created + timeouts.image:
                return AttemptFailed(FailureReason.IMAGE_PULL_FAILED, text)
            wakes.append(pod.created + timeouts.image)
            kind, problem = "ImagePullBackOff", text
        elif text := evidence.crash_loop_error(pod, timeouts.restarts):
            return AttemptFailed(FailureReason.START_FAILED, text)
        elif text := evidence.container_config_error(pod):
            kind, problem = evidence.CONFIG_ERROR, text
        elif text := evidence.missing_claim(pod):
            kind, problem = "ClaimNotFound", text
        elif pod.unschedulable and not problem:
            kind, problem = "Unschedulable", evidence.shorten(f"pod {pod.name}: {pod.unschedulable}")
    cluster = observed.cluster(rayjob.attempt)
    if cluster and cluster.failure and not problem:
        kind = "QuotaExceeded" if "exceeded quota" in cluster.failure else "PodsRefused"
        problem = evidence.shorten(cluster.failure)
    if facts.running_deadline is not None:
        deadline = max(rayjob.created, admitted or rayjob.created) + facts.running_deadline
        if now >= deadline:
            because = f": {problem}" if problem else ""
            text = f"not running after preRunningDeadlineSeconds ({_seconds(facts.running_deadline)}){because}"
            return AttemptFailed(_LATE.get(kind, FailureReason.PRE_RUNNING_DEADLINE_EXCEEDED), evidence.shorten(text))
        wakes.append(deadline)
    return InProgress(Stage.STARTING, kind, problem, min(wakes, default=None))


def _seconds(span: timedelta) -> int:
    return int(span.total_seconds())
