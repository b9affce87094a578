"""PURE: disruptions of the pods that a training cannot lose, the head's and the trainer's.

A budget and annotations keep drains and autoscalers away from them. What ends them all the same lets them save first.
"""

from typing import Any

from omni_operator.api import DiffusionRLJob
from omni_operator.api.names import TRAINER_GROUP, Names

from .containers import pre_stop
from .merge import merge_templates

Object = dict[str, Any]
HEAD_GROUP = "headgroup"  # KubeRay's name of it
KEEP = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "karpenter.sh/do-not-disrupt": "true"}
SAVE_PROGRAM = "verl_omni.utils.save_before_stop"


def protect_pod(job: DiffusionRLJob) -> Object:
    """Part of the template of head and trainer pods: the annotations, and a hook that saves a checkpoint first.

    A drain, a scheduler or a queue deletes pods, and the operator is not asked before.
    """
    keep = {"metadata": {"annotations": dict(KEEP)}} if _blocks(job) else {}
    policy = job.spec.suspend_policy
    if policy.mode == "Immediate" or not policy.grace_seconds or not job.spec.keeps_results:
        return keep
    return merge_templates(keep, pre_stop(SAVE_PROGRAM, policy.grace_seconds))


def render_budget(job: DiffusionRLJob, attempt: int, cluster: str, uid: str, trainers: int) -> Object | None:
    """PodDisruptionBudget of an attempt, which its RayCluster owns; None if the job has none.

    RayClusters have no `scale` subresource, so the budget has to say how many pods there are. Pods that are not ready
    may always be evicted: a job that does not run blocks no drain.

    Args:
        cluster: name of the attempt's RayCluster.
        uid: uid of the RayCluster.
        trainers: number of its trainer pods.
    """
    if not _blocks(job):
        return None
    groups = {"key": "ray.io/group", "operator": "In", "values": [HEAD_GROUP, TRAINER_GROUP]}
    owner = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": cluster, "uid": uid, "controller": True}
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {
            "name": cluster,
            "namespace": job.metadata.namespace or "default",
            "labels": Names(job.metadata.name).attempt_labels(attempt),
            "ownerReferences": [owner],
        },
        "spec": {
            "minAvailable": 1 + trainers,
            "selector": {"matchLabels": {"ray.io/cluster": cluster}, "matchExpressions": [groups]},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


def _blocks(job: DiffusionRLJob) -> bool:
    return job.spec.scheduling.voluntary_disruptions == "Block"
