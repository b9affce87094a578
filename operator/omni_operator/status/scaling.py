"""PURE: how many rollout pods a running attempt has, and which of them leave."""

from __future__ import annotations

from collections.abc import Iterable

from omni_operator.api.names import ROLLOUT_GROUP

from .job_facts import JobFacts
from .observation import Observation, ObservedPod
from .situation import ScaleRollout


def scale(facts: JobFacts, observed: Observation, attempt: int) -> tuple[ScaleRollout, ...]:
    """Let the rollout pods of a running attempt be as many as the spec says."""
    cluster = observed.cluster(attempt)
    if not facts.live or cluster is None or cluster.deleting or cluster.rollout_group is None:
        return ()
    current, wanted = cluster.rollout_group.replicas, facts.rollout_pods
    if current == wanted:
        return ()
    pods = [pod for pod in observed.pods_of(attempt) if pod.group == ROLLOUT_GROUP]
    return (ScaleRollout(cluster, wanted, leaving_pods(pods, wanted) if wanted < current else ()),)


def leaving_pods(pods: Iterable[ObservedPod], kept: int) -> tuple[str, ...]:
    """Names of the pods that leave so that `kept` stay, and of those that are being deleted.

    Those that are not ready leave first, then the newest: they have done the least. KubeRay counts a pod that is being
    deleted as one that runs unless it is named, and would delete another one for it.
    """
    found = list(pods)
    staying = sorted((pod for pod in found if not pod.deleting), key=lambda pod: (not pod.ready, pod.created, pod.name))
    return tuple(sorted([*(pod.name for pod in found if pod.deleting), *(pod.name for pod in staying[kept:])]))
