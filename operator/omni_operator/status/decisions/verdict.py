"""PURE: state of an attempt: in progress, succeeded or failed, and why.

KubeRay does not report a lost head: its RayJob stays `Running` and its RayCluster `ready`. The operator detects it from
the RayCluster's condition `HeadPodReady` turning False after it was True once.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from omni_operator.api.names import REWARD_GROUP, ROLLOUT_GROUP, ends_no_attempt, is_scorer_group
from omni_operator.status.observed import evidence
from omni_operator.status.observed.job_facts import JobFacts
from omni_operator.status.observed.observation import HEAD, Observation, ObservedRayJob
from omni_operator.status.reasons.names import FailureReason

from .timeouts import Timeouts


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
_OF_LOST_PODS = ("HeadLost", "WorkerLost")
_LOST = frozenset({"JobStatusCheckTimeoutExceeded", "JobDeploymentStatusTransitionGracePeriodExceeded"})


# An attempt that never ran in its time failed by what it waited for, where that is known.
_LATE: dict[str, FailureReason] = {"Unschedulable": "Unschedulable", "QuotaExceeded": "QuotaExceeded"}


def classify_attempt(
    facts: JobFacts, observed: Observation, attempt: int, admitted: datetime | None, timeouts: Timeouts, now: datetime
) -> Verdict:
    """State of attempt number `attempt`.

    Args:
        admitted: time at which a queue admitted it; None: when it was created.
    """
    rayjob = observed.rayjob(attempt)
    if rayjob is None:
        return AttemptFailed("ChildDeleted", f"the RayJob of attempt {attempt} was deleted, not by the operator")
    if rayjob.deployment == "Complete" and rayjob.job == "SUCCEEDED":
        return Succeeded(min(rayjob.ended or now, now))
    if rayjob.deleting:
        return AttemptFailed("ChildDeleted", f"RayJob {rayjob.name} was deleted, not by the operator")
    if rayjob.deployment in ("Failed", "Complete", "ValidationFailed"):
        return _ended(rayjob, observed, timeouts, now)
    queued = rayjob.suspended or rayjob.deployment in _QUEUED
    if not queued and (lost := _head_lost(rayjob, observed, timeouts, now)):
        return lost if isinstance(lost, AttemptFailed) else InProgress(Stage.RUNNING, "HeadNotReady", lost[0], lost[1])
    if rayjob.deployment == "Running" and not rayjob.waits:
        return _running(observed, attempt, timeouts)
    return InProgress(Stage.QUEUED) if queued else _starting(facts, rayjob, observed, admitted, timeouts, now)


def _ended(rayjob: ObservedRayJob, observed: Observation, timeouts: Timeouts, now: datetime) -> Verdict:
    """Reason why KubeRay ended the RayJob. Ray notices a lost node before Kubernetes does, which then says so."""
    failed = _why_ended(rayjob, observed)
    late = (rayjob.ended or now) + timeouts.head
    if failed.reason in _OF_LOST_PODS and now < late:
        return InProgress(Stage.RUNNING, failed.reason, failed.text, late)
    return failed


def _why_ended(rayjob: ObservedRayJob, observed: Observation) -> AttemptFailed:
    message = evidence.shorten(rayjob.message or rayjob.reason or rayjob.job or "KubeRay gave no reason")
    report = observed.report_of(rayjob.attempt)
    if rayjob.deployment == "ValidationFailed":
        return AttemptFailed("InvalidConfig", f"KubeRay refused the RayJob: {message}")
    if rayjob.reason == "DeadlineExceeded":
        return AttemptFailed("DeadlineExceeded", message)
    if rayjob.reason == "PreRunningDeadlineExceeded":
        return AttemptFailed("PreRunningDeadlineExceeded", message)
    if lost := _lost_pod(observed, rayjob.attempt):
        return lost
    if rayjob.reason in _LOST:
        return AttemptFailed("HeadLost", f"KubeRay lost contact to the Ray head: {message}")
    if report and report.error:
        kind = report.error_kind or evidence.reason_from_text(report.error) or "ApplicationError"
        return AttemptFailed(kind, evidence.shorten(report.error))
    if killed := evidence.killed_program(rayjob.message):
        return AttemptFailed("OutOfMemory", killed)
    if rayjob.job == "STOPPED":
        return AttemptFailed("ApplicationError", f"the Ray job was stopped, not by the operator: {message}")
    return AttemptFailed(evidence.reason_from_text(message) or "ApplicationError", message)


def _lost_pod(observed: Observation, attempt: int) -> AttemptFailed | None:
    """What happened to a pod, which explains more than the error that the trainer saw."""
    for found in observed.evidence_of(attempt):
        return AttemptFailed(found.reason, found.text)
    for pod in observed.pods_of(attempt):
        if pod.unreachable and not ends_no_attempt(pod.group):
            return AttemptFailed("Preempted", f"node {pod.node} of pod {pod.name} does not answer")
    return None


def _head_lost(
    rayjob: ObservedRayJob, observed: Observation, timeouts: Timeouts, now: datetime
) -> AttemptFailed | tuple[str, datetime] | None:
    """Verdict on a head that was ready and is not; message and time of the next pass while it may recover."""
    cluster = observed.cluster(rayjob.attempt)
    # KubeRay submits a job, and marks a cluster provisioned, only after the head was ready.
    once_ready = cluster is not None and (cluster.provisioned or rayjob.deployment == "Running")
    if cluster is None or cluster.head_ready is not False or not once_ready:
        return None
    if cluster.head_reason != "HeadPodNotFound" and observed.head_ready(rayjob.attempt):
        return None  # only a container that is not Ray's is not ready
    heads = [pod for pod in observed.pods_of(rayjob.attempt) if pod.group == HEAD]
    text = f"the Ray head of {cluster.name} is not ready: {cluster.head_reason or 'no reason given'}"
    ended = not heads or any(pod.phase in ("Failed", "Succeeded") or pod.deleting for pod in heads)
    since = cluster.head_since or now
    if cluster.head_reason == "HeadPodNotFound" or ended or now >= since + timeouts.head:
        return _lost_pod(observed, rayjob.attempt) or AttemptFailed("HeadLost", text)
    return text, since + timeouts.head


def _running(observed: Observation, attempt: int, timeouts: Timeouts) -> Verdict:
    for pod in observed.pods_of(attempt):
        # KubeRay replaces rollout pods, and the trainer does without them; also without a judge or scorer of several.
        others = pod.group == REWARD_GROUP or is_scorer_group(pod.group)
        if others and observed.ready_pods(attempt, pod.group):
            continue
        if pod.group != ROLLOUT_GROUP and (text := evidence.crash_loop_error(pod, timeouts.restarts)):
            return AttemptFailed("WorkerLost", text)
    return InProgress(Stage.RUNNING)


def _starting(
    facts: JobFacts,
    rayjob: ObservedRayJob,
    observed: Observation,
    admitted: datetime | None,
    timeouts: Timeouts,
    now: datetime,
) -> Verdict:
    """State of an attempt that Ray does not run yet: what its pods wait for, and until when they may."""
    wakes: list[datetime] = []
    missing: list[datetime] = []  # since when pods find no node, or a quota refuses them
    kind = problem = ""
    for pod in observed.pods_of(rayjob.attempt):
        if text := evidence.image_pull_error(pod):
            hopeless = any(wait.reason in evidence.PERMANENT_PULL_ERRORS for wait in pod.waiting)
            if hopeless or now >= pod.created + timeouts.image:
                return AttemptFailed("ImagePullFailed", text)
            wakes.append(pod.created + timeouts.image)
            kind = "ImagePullBackOff"
            problem = text
        elif text := evidence.crash_loop_error(pod, timeouts.restarts):
            return AttemptFailed("StartFailed", text)
        elif text := evidence.container_config_error(pod):
            kind = evidence.CONFIG_ERROR
            problem = text
        elif text := evidence.missing_claim(pod):
            kind = "ClaimNotFound"
            problem = text
        elif text := evidence.unbound_claim(pod):
            kind = "ClaimNotBound"
            problem = text
        elif pod.unschedulable and not problem:
            kind = "Unschedulable"
            problem = evidence.shorten(f"pod {pod.name}: {pod.unschedulable}")
        elif pod.sidecars and not problem:
            kind = evidence.SIDECAR
            problem = evidence.sidecar_problem((pod,))
        if pod.unschedulable:
            missing.append(pod.created)
    cluster = observed.cluster(rayjob.attempt)
    if cluster and cluster.failure and not problem:
        kind = "QuotaExceeded" if evidence.is_refused_by_quota(cluster.failure) else "PodsRefused"
        problem = evidence.shorten(cluster.failure)
        missing.append(cluster.created)
    # From then on the attempt may start without these pods.
    wakes.extend(late for since in missing if (late := since + timeouts.queue) > now)
    if facts.running_deadline is not None:
        deadline = max(rayjob.created, admitted or rayjob.created) + facts.running_deadline
        if now >= deadline:
            because = f": {problem}" if problem else ""
            text = f"not running after spec.preRunningDeadlineSeconds ({_seconds(facts.running_deadline)}){because}"
            return AttemptFailed(_LATE.get(kind, "PreRunningDeadlineExceeded"), evidence.shorten(text))
        wakes.append(deadline)
    return InProgress(Stage.STARTING, kind, problem, min(wakes, default=None))


def _seconds(span: timedelta) -> int:
    return int(span.total_seconds())
