"""PURE: quota of a Kueue queue for autoscaled pods.

Kueue reserves quota for the numbers of pods in a RayJob, and KubeRay creates those in its RayCluster, so the operator
changes both. Kueue keeps new pods from being scheduled until it has reserved quota for them.
"""

from __future__ import annotations

from omni_operator.status.observed.job_facts import JobFacts
from omni_operator.status.observed.observation import Observation, ObservedRayJob

from .situation import ReserveQuota, ScaleGroup


def follow_pods(
    facts: JobFacts, observed: Observation, attempt: int, changes: tuple[ScaleGroup, ...]
) -> tuple[ScaleGroup | ReserveQuota, ...]:
    """Changes of worker groups, with those of the quota: it is requested before pods are added, and returned when the
    removed ones are gone.
    """
    rayjob = observed.rayjob(attempt)
    cluster = observed.cluster(attempt)
    if rayjob is None or cluster is None or cluster.deleting:
        return changes
    wanted = {group.name: group.replicas for group in cluster.groups if group.gated}
    wanted |= {change.group: change.new for change in changes}
    scaled = {pool.group for pool in facts.pools if pool.live}
    more: list[ReserveQuota] = []
    fewer: list[ReserveQuota] = []
    for request in rayjob.requested:
        if request.group not in scaled & wanted.keys():
            continue
        step = ReserveQuota(rayjob, request, wanted[request.group])
        present = sum(pod.group == request.group for pod in observed.pods_of(attempt))
        if step.new > request.pods:
            more.append(step)
        elif present <= step.new < request.pods:
            fewer.append(step)
    return (*more, *changes, *fewer)


def restore_numbers(rayjob: ObservedRayJob) -> ReserveQuota | None:
    """The first group of a RayJob that waits which does not have the number of pods that an attempt begins with."""
    for request in rayjob.requested:
        size = rayjob.pool(request.group)
        if size is not None and request.pods != size.pods:
            return ReserveQuota(rayjob, request, size.pods)
    return None
