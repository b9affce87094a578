"""PURE: how an attempt stands.

KubeRay says nothing about a lost head (its RayJob stays `Running`) and keeps `state: ready` on the RayCluster, so a
lost head is read from the RayCluster's condition `HeadPodReady`, after it was once true.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from . import evidence
from .reasons import FailureReason
from .seen import HEAD, Observed, RayClusterSeen, RayJobSeen
from .terms import Patience, Terms


class Stage(str, Enum):
    """How far an attempt came."""

    QUEUED = "Queued"
    STARTING = "Starting"
    RUNNING = "Running"


@dataclass(frozen=True, slots=True)
class Going:
    """The attempt goes on.

    Attributes:
        trouble: what keeps it from running, in words; empty where nothing does.
        wake: when to look again though nothing was heard.
    """

    stage: Stage
    trouble_kind: str = ""
    trouble: str = ""
    wake: datetime | None = None


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The attempt did what it was to do."""

    at: datetime


@dataclass(frozen=True, slots=True)
class Broke:
    """The attempt ended without success, or has to be ended."""

    reason: FailureReason
    text: str


Verdict = Going | Succeeded | Broke
_QUEUED = frozenset({"Suspending", "Suspended"})
_LOST = frozenset({"JobStatusCheckTimeoutExceeded", "JobDeploymentStatusTransitionGracePeriodExceeded"})


# An attempt that never ran in its time failed by what it waited for, where that is known.
_LATE = {"Unschedulable": FailureReason.UNSCHEDULABLE, "QuotaExceeded": FailureReason.QUOTA_EXCEEDED}


def classify(
    terms: Terms, seen: Observed, attempt: int, admitted: datetime | None, patience: Patience, now: datetime
) -> Verdict:
    """How attempt number `attempt` stands.

    Args:
        admitted: since when a queue lets it run; None: from its creation.
    """
    rayjob = seen.rayjob(attempt)
    if rayjob is None:
        return Broke(
            FailureReason.CHILD_DELETED, f"the RayJob of attempt {attempt} is gone; nothing of ours deleted it"
        )
    if rayjob.deployment == "Complete" and rayjob.job == "SUCCEEDED":
        return Succeeded(rayjob.ended or now)
    if rayjob.deleting:
        return Broke(FailureReason.CHILD_DELETED, f"somebody deleted RayJob {rayjob.name}")
    if rayjob.deployment in ("Failed", "Complete", "ValidationFailed"):
        return _ended(rayjob, seen)
    queued = rayjob.suspended or rayjob.deployment in _QUEUED
    if not queued and (lost := _head_lost(rayjob, seen, patience, now)):
        return lost if isinstance(lost, Broke) else Going(Stage.RUNNING, "HeadNotReady", lost[0], lost[1])
    if rayjob.deployment == "Running":
        return _running(seen, attempt, patience)
    return Going(Stage.QUEUED) if queued else _starting(terms, rayjob, seen, admitted, patience, now)


def _ended(rayjob: RayJobSeen, seen: Observed) -> Broke:
    """Why KubeRay ended the RayJob."""
    said = evidence.shorten(rayjob.message or rayjob.reason or rayjob.job or "KubeRay gave no reason")
    report = seen.report_of(rayjob.attempt)
    if rayjob.deployment == "ValidationFailed":
        return Broke(FailureReason.INVALID_CONFIG, f"KubeRay refused the RayJob: {said}")
    if rayjob.reason == "DeadlineExceeded":
        return Broke(FailureReason.DEADLINE_EXCEEDED, said)
    if rayjob.reason == "PreRunningDeadlineExceeded":
        return Broke(FailureReason.PRE_RUNNING_DEADLINE_EXCEEDED, said)
    # A pod that was killed explains more than what the trainer saw of it.
    for found in seen.evidence_of(rayjob.attempt):
        return Broke(found.reason, found.text)
    if rayjob.reason in _LOST:
        return Broke(FailureReason.HEAD_LOST, f"KubeRay lost touch with the Ray head: {said}")
    if report and report.error:
        kind = report.error_kind or evidence.by_words(report.error) or FailureReason.APPLICATION_ERROR
        return Broke(kind, evidence.shorten(report.error))
    if rayjob.job == "STOPPED":
        return Broke(FailureReason.APPLICATION_ERROR, f"somebody stopped the Ray job: {said}")
    return Broke(evidence.by_words(said) or FailureReason.APPLICATION_ERROR, said)


def _head_lost(
    rayjob: RayJobSeen, seen: Observed, patience: Patience, now: datetime
) -> Broke | tuple[str, datetime] | None:
    """A verdict on a head that once was ready and is not; words and a time to look again while it may come back."""
    cluster = seen.cluster(rayjob.attempt)
    if cluster is None or cluster.head_ready is not False or not _head_once_ready(rayjob, cluster):
        return None
    heads = [pod for pod in seen.pods_of(rayjob.attempt) if pod.group == HEAD]
    text = f"the Ray head of {cluster.name} is not ready: {cluster.head_reason or 'no reason given'}"
    ended = not heads or any(pod.phase in ("Failed", "Succeeded") or pod.deleting for pod in heads)
    since = cluster.head_since or now
    if cluster.head_reason == "HeadPodNotFound" or ended or now >= since + patience.head:
        for found in seen.evidence_of(rayjob.attempt):
            return Broke(found.reason, found.text)
        return Broke(FailureReason.HEAD_LOST, text)
    return text, since + patience.head


def _head_once_ready(rayjob: RayJobSeen, cluster: RayClusterSeen) -> bool:
    """KubeRay submits a job, and calls a cluster provisioned, only after the head was ready."""
    return cluster.provisioned or rayjob.deployment == "Running"


def _running(seen: Observed, attempt: int, patience: Patience) -> Verdict:
    for pod in seen.pods_of(attempt):
        if text := evidence.crashing(pod, patience.restarts):
            return Broke(FailureReason.WORKER_LOST, text)
    return Going(Stage.RUNNING)


def _starting(
    terms: Terms, rayjob: RayJobSeen, seen: Observed, admitted: datetime | None, patience: Patience, now: datetime
) -> Verdict:
    """An attempt whose job Ray does not run yet: what its pods wait for, and for how long that may go on."""
    wakes: list[datetime] = []
    kind = trouble = ""
    for pod in seen.pods_of(rayjob.attempt):
        if text := evidence.pulling(pod):
            hopeless = any(wait.reason in evidence.HOPELESS for wait in pod.waiting)
            if hopeless or now >= pod.created + patience.image:
                return Broke(FailureReason.IMAGE_PULL_FAILED, text)
            wakes.append(pod.created + patience.image)
            kind, trouble = "ImagePullBackOff", text
        elif text := evidence.crashing(pod, patience.restarts):
            return Broke(FailureReason.START_FAILED, text)
        elif pod.unschedulable and not trouble:
            kind, trouble = "Unschedulable", evidence.shorten(f"pod {pod.name}: {pod.unschedulable}")
    cluster = seen.cluster(rayjob.attempt)
    if cluster and cluster.failure and not trouble:
        kind = "QuotaExceeded" if "exceeded quota" in cluster.failure else "PodsRefused"
        trouble = evidence.shorten(cluster.failure)
    if terms.running_deadline is not None:
        deadline = max(rayjob.created, admitted or rayjob.created) + terms.running_deadline
        if now >= deadline:
            because = f": {trouble}" if trouble else ""
            text = f"not running after preRunningDeadlineSeconds ({_seconds(terms.running_deadline)}){because}"
            return Broke(_LATE.get(kind, FailureReason.PRE_RUNNING_DEADLINE_EXCEEDED), evidence.shorten(text))
        wakes.append(deadline)
    return Going(Stage.STARTING, kind, trouble, min(wakes, default=None))


def _seconds(span: timedelta) -> int:
    return int(span.total_seconds())
