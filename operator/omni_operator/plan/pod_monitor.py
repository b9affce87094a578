"""PURE: PodMonitor of a job, for the Prometheus operator."""

import re
from typing import Any

from omni_operator.api import DiffusionRLJob
from omni_operator.api.names import ATTEMPT_LABEL, JOB_LABEL

Object = dict[str, Any]
# Pod labels -> labels of every time series.
RELABELLED = {JOB_LABEL: "diffusionrl_job", ATTEMPT_LABEL: "attempt", "ray.io/node-type": "ray_node_type"}


def render_pod_monitor(job: DiffusionRLJob) -> Object | None:
    """PodMonitor that scrapes Ray's metrics; None if it is disabled."""
    wanted = job.spec.observability.pod_monitor
    if not wanted.enabled:
        return None
    relabelings = [
        {"sourceLabels": [f"__meta_kubernetes_pod_label_{re.sub('[^a-z0-9]', '_', label)}"], "targetLabel": target}
        for label, target in RELABELLED.items()
    ]
    endpoints = [{"port": "metrics", "interval": wanted.interval, "relabelings": relabelings}]
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": {"name": job.metadata.name, "labels": dict(wanted.labels)},
        "spec": {"selector": {"matchLabels": {JOB_LABEL: job.metadata.name}}, "podMetricsEndpoints": endpoints},
    }
