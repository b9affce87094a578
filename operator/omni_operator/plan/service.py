"""PURE: Service of the running attempt's head."""

from __future__ import annotations

from typing import Any

from omni_operator.api import DiffusionRLJob
from omni_operator.api.names import JOB_LABEL, Names

from .containers import METRICS_PORT
from .head import DASHBOARD

Object = dict[str, Any]
HEAD_LABELS = {"ray.io/node-type": "head"}


def render_head_service(job: DiffusionRLJob) -> Object:
    """Headless Service: `kubectl port-forward service/<job>-head 8265` works for every attempt."""
    ports = {"dashboard": DASHBOARD, "metrics": METRICS_PORT}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": Names(job.metadata.name).head_service},
        "spec": {
            "clusterIP": "None",
            "selector": {JOB_LABEL: job.metadata.name, **HEAD_LABELS},
            "ports": [{"name": name, "port": port, "targetPort": port} for name, port in ports.items()],
        },
    }
