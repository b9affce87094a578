"""PURE: RayJob of an attempt."""

import json
from typing import Any

from omni_operator.api import DiffusionRLJob
from omni_operator.api.names import Names

from .cluster_settings import ClusterSettings
from .pods.head import render_head_group
from .pods.workers import render_worker_groups
from .pools import driver_resource
from .queues import scheduler_entries

Object = dict[str, Any]
DEADLINE_SLACK_SECONDS = 60  # the operator's own deadline comes first, and reports the reason


def render_ray_job(job: DiffusionRLJob, attempt: int, settings: ClusterSettings, entrypoint: str) -> Object:
    """The RayJob, without labels, owner and namespace, which the caller adds.

    KubeRay submits it once. A lost head ends the attempt; the operator detects that, because KubeRay would report
    `Running` forever.
    """
    spec: Object = {
        "submissionMode": "HTTPMode",
        "backoffLimit": 0,
        **_end(job, settings),
        "entrypoint": entrypoint,
        # The training program runs in a trainer pod: the head has neither accelerators nor memory for it.
        "entrypointResources": json.dumps({driver_resource(job): 0.001}),
        "rayClusterSpec": _cluster(job, attempt, settings),
    }
    if job.spec.active_deadline_seconds:
        spec["activeDeadlineSeconds"] = job.spec.active_deadline_seconds + DEADLINE_SLACK_SECONDS
    metadata: Object = {
        "name": Names(job.metadata.name).attempt(attempt),
        "annotations": {
            **scheduler_entries(job.metadata.annotations),
            "ray.io/disable-provisioned-head-restart": "true",
        },
        "labels": scheduler_entries(job.metadata.labels),
    }
    return {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": metadata, "spec": spec}


def _cluster(job: DiffusionRLJob, attempt: int, settings: ClusterSettings) -> Object:
    spec: Object = {
        "rayVersion": job.spec.runtime.ray_version or settings.ray_version,
        "headGroupSpec": render_head_group(job, attempt, settings),
        "workerGroupSpecs": render_worker_groups(job, attempt, settings),
    }
    if job.spec.security.ray_auth == "Token":
        spec["authOptions"] = {"mode": "token"}
    return spec


def _end(job: DiffusionRLJob, settings: ClusterSettings) -> Object:
    """Deletion of the pods after the attempt; they stay for a moment, for reading exit codes."""
    match job.spec.cleanup_policy:
        case "DeleteCluster":
            return {"shutdownAfterJobFinishes": True, "ttlSecondsAfterFinished": settings.linger_seconds}
        case "DeleteWorkers":
            rules = [
                {"policy": "DeleteWorkers", "condition": {"jobStatus": status, "ttlSeconds": settings.linger_seconds}}
                for status in ("SUCCEEDED", "FAILED")
            ]
            return {"deletionStrategy": {"deletionRules": rules}}
        case "Retain":
            return {"shutdownAfterJobFinishes": False}
