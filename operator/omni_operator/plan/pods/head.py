"""PURE: head group of a job's RayCluster; the head runs no part of the training."""

from typing import Any

from omni_operator.api import DiffusionRLJob
from omni_operator.api.names import Names
from omni_operator.plan.cluster_settings import ClusterSettings
from omni_operator.plan.pods.disruptions import protect_pod

from .containers import CONTAINER, apply_user_template, render_pod_template
from .merge import merge_templates

Object = dict[str, Any]
SHARED_MEMORY = "256Mi"
OBJECT_STORE_BYTES = 128 * 1024**2
REQUESTS = {"cpu": "500m", "memory": "2Gi"}
GCS = 6379
DASHBOARD = 8265
CLIENT = 10001


def render_head_group(job: DiffusionRLJob, attempt: int, settings: ClusterSettings) -> Object:
    """`spec.rayClusterSpec.headGroupSpec` of a RayJob."""
    labels = Names(job.metadata.name).attempt_labels(attempt)
    template = render_pod_template(
        job,
        settings,
        labels=labels,
        env=(),
        resources=job.spec.head.resources,
        default_requests=REQUESTS,
        shared_memory=SHARED_MEMORY,
        probe={"path": "/api/gcs_healthz", "port": DASHBOARD},
    )
    ports = {"gcs-server": GCS, "dashboard": DASHBOARD, "client": CLIENT}
    container = {"name": CONTAINER, "ports": [{"name": name, "containerPort": port} for name, port in ports.items()]}
    template = merge_templates(template, {"spec": {"containers": [container]}})
    template = merge_templates(template, protect_pod(job))
    return {
        "rayStartParams": {
            "dashboard-host": "0.0.0.0",
            "num-cpus": "0",  # Ray schedules no task on the head
            "num-gpus": "0",
            "object-store-memory": str(OBJECT_STORE_BYTES),
        },
        "template": apply_user_template(template, dict(job.spec.head.pod_template), labels),
    }
