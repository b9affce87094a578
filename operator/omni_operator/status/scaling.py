"""PURE: how many rollout and reward pods a running attempt has, and which of them leave."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from omni_operator.api.names import REWARD_GROUP, ROLLOUT_GROUP

from . import evidence
from .conditions import ConditionValue, false_because, true_because, unknown_because
from .job_facts import Autoscaling, JobFacts
from .observation import Observation, ObservedPod, ObservedRayCluster, PodGroup
from .queue_history import QueueHistory
from .situation import ScaleGroup


def scale(facts: JobFacts, observed: Observation, attempt: int, now: datetime) -> tuple[ScaleGroup, ...]:
    """Let the rollout and reward pods of a running attempt be as many as the spec, or its autoscaling, says."""
    cluster = observed.cluster(attempt)
    if cluster is None or cluster.deleting:
        return ()
    return (*_scale_rollouts(facts, observed, cluster, now), *_scale_judges(facts, observed, cluster))


def _scale_judges(facts: JobFacts, observed: Observation, cluster: ObservedRayCluster) -> tuple[ScaleGroup, ...]:
    group, wanted = cluster.group(REWARD_GROUP), facts.reward_pods
    if not facts.judges_live or group is None or group.replicas == wanted:
        return ()
    if not group.least <= wanted <= group.most:
        return ()  # an earlier version of the operator created the attempt; KubeRay would keep the number
    return (_change(observed, cluster, group, wanted),)


def _change(observed: Observation, cluster: ObservedRayCluster, group: PodGroup, wanted: int) -> ScaleGroup:
    pods = [pod for pod in observed.pods_of(cluster.attempt) if pod.group == group.name]
    removed = leaving_pods(pods, wanted) if wanted < group.replicas else ()
    return ScaleGroup(cluster, group.name, group.index, group.replicas, wanted, removed)


def _scale_rollouts(
    facts: JobFacts, observed: Observation, cluster: ObservedRayCluster, now: datetime
) -> tuple[ScaleGroup, ...]:
    attempt, group = cluster.attempt, cluster.group(ROLLOUT_GROUP)
    if not facts.live or group is None:
        return ()
    current, wanted = group.replicas, facts.rollout_pods
    if facts.autoscaling is not None:
        report = observed.report_of(attempt)
        wanted = recommend(facts.autoscaling, report.queue if report else None, current, now)
        if wanted > current >= facts.autoscaling.least and find_limit(observed, attempt) is not None:
            return ()  # others would not start either
    if current == wanted:
        return ()
    return (_change(observed, cluster, group, wanted),)


def recommend(policy: Autoscaling, queue: QueueHistory | None, current: int, now: datetime) -> int:
    """How many rollout pods there should be.

    More as soon as the last report needs them, fewer when no report of a whole window needed as many. So after pods
    were added, none is removed for a window, and a trainer whose reports are missing keeps what it has.
    """
    kept = min(max(current, policy.least), policy.most)
    if queue is None:
        return kept
    if (needed := policy.pods_for(queue.last)) > kept:
        return needed
    begin = now - policy.window
    return kept if queue.since > begin else min(kept, policy.pods_for(queue.most(begin)))


def find_limit(observed: Observation, attempt: int) -> tuple[str, str] | None:
    """Reason and message of what keeps rollout pods from starting: a quota, or no node with room."""
    cluster = observed.cluster(attempt)
    if cluster is not None and evidence.is_refused_by_quota(cluster.failure):
        return "QuotaExceeded", cluster.failure
    pods = observed.pods_of(attempt)
    waiting = next((pod for pod in pods if pod.group == ROLLOUT_GROUP and pod.unschedulable), None)
    return ("Unschedulable", f"pod {waiting.name}: {waiting.unschedulable}") if waiting else None


def review_scaling(facts: JobFacts, observed: Observation, attempt: int, now: datetime) -> ConditionValue:
    """The condition `RolloutsScaled`; `facts` are those of `as_scaled`."""
    policy, report = facts.autoscaling, observed.report_of(attempt)
    if policy is None:
        return unknown_because("NotAutoscaled", "spec.rollout.autoscaling is not given")
    if not facts.live:
        return false_because("InQueue", "the queue has admitted the pods of the attempt; no others can be added")
    if limit := find_limit(observed, attempt):
        return false_because(*limit)
    if report is None or report.queue is None:
        return unknown_because("NoReports", "the trainer has not reported how many samples wait for generation")
    if report.queue.most(now - policy.window) > policy.samples * policy.most:
        text = f"more than {policy.samples} samples for each of {policy.most} rollout pods wait for generation"
        return false_because("AtMaximum", f"{text}; spec.rollout.autoscaling.maxReplicas is {policy.most}")
    return true_because("WithinLimits", f"{facts.rollout_pods} rollout pods")


def as_scaled(facts: JobFacts, cluster: ObservedRayCluster | None) -> JobFacts:
    """The facts of a job whose pods are as many as autoscaling has made them."""
    group = cluster.group(ROLLOUT_GROUP) if cluster is not None else None
    if facts.autoscaling is None or not facts.live or group is None:
        return facts
    pods = group.replicas
    added = (pods - facts.rollout_pods) * facts.accelerators_of_rollout_pod
    return replace(facts, rollout_pods=pods, accelerators=facts.accelerators + added)


def leaving_pods(pods: Iterable[ObservedPod], kept: int) -> tuple[str, ...]:
    """Names of the pods that leave so that `kept` stay, and of those that are being deleted.

    Those that are not ready leave first, then the newest: they have done the least. KubeRay counts a pod that is being
    deleted as one that runs unless it is named, and would delete another one for it.
    """
    found = list(pods)
    staying = sorted((pod for pod in found if not pod.deleting), key=lambda pod: (not pod.ready, pod.created, pod.name))
    return tuple(sorted([*(pod.name for pod in found if pod.deleting), *(pod.name for pod in staying[kept:])]))
