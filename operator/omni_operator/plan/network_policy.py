"""PURE: NetworkPolicy of a job's pods."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from omni_operator.api import DiffusionRLJob
from omni_operator.api.names import JOB_LABEL

from .cluster_settings import ClusterSettings
from .containers import METRICS_PORT, variables_of_template
from .head import DASHBOARD
from .pools import pools_of
from .storage import HUB_ENDPOINT, downloads_from_hub, trainer_variables

Object = dict[str, Any]
NAMESPACE_LABEL = "kubernetes.io/metadata.name"
# KubeRay's chart and manifests use different names.
KUBERAY: Object = {"key": "app.kubernetes.io/name", "operator": "In", "values": ["kuberay", "kuberay-operator"]}
# KubeRay gives the name `kuberay` to all Ray pods, too, which would let every job reach the dashboards of all others.
NO_RAY_POD: Object = {"key": "ray.io/cluster", "operator": "DoesNotExist"}
DNS = 53
HTTPS = 443


def render_network_policy(job: DiffusionRLJob, settings: ClusterSettings) -> Object | None:
    """The NetworkPolicy; None if the job disables it."""
    mode = job.spec.security.network_policy
    if mode == "Disabled":
        return None
    own = {"podSelector": {"matchLabels": {JOB_LABEL: job.metadata.name}}}
    spec: Object = {
        "podSelector": own["podSelector"],
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [own]}, _from_kuberay(settings), _from_scrapers()],
    }
    if mode == "DefaultDeny":
        spec["policyTypes"] = ["Ingress", "Egress"]
        spec["egress"] = [{"to": [own]}, _ports(*_both(DNS)), *_outside(job), *_to_operator(settings)]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": job.metadata.name},
        "spec": spec,
    }


def _from_kuberay(settings: ClusterSettings) -> Object:
    """KubeRay submits the job and polls its status at the dashboard."""
    known = settings.kuberay_namespace
    namespace: Object = {"matchLabels": {NAMESPACE_LABEL: known}} if known else {}
    kuberay = {
        "namespaceSelector": namespace,
        "podSelector": {"matchExpressions": [KUBERAY, NO_RAY_POD]},
    }
    return {"from": [kuberay], **_ports(("TCP", DASHBOARD))}


def _from_scrapers() -> Object:
    return {"from": [{"namespaceSelector": {}}], **_ports(("TCP", METRICS_PORT))}


def _outside(job: DiffusionRLJob) -> list[Object]:
    """Ports of reward servers, stores, model hub and trackers; a NetworkPolicy cannot name hosts."""
    wanted = {_port(url) for scorer in job.spec.reward.scorers if (url := scorer.server_url)}
    endpoint = job.spec.storage.endpoint
    if job.spec.uses_s3:
        wanted.add(_port(endpoint or "https:"))
    if job.spec.sends_to_hub:
        wanted.add(_port(trainer_variables(job).get(HUB_ENDPOINT) or (not job.spec.uses_s3 and endpoint) or "https:"))
    for pool in pools_of(job):
        if downloads_from_hub(job, pool):
            wanted.add(_port(variables_of_template(pool.pod_template).get(HUB_ENDPOINT) or "https:"))
    if {"wandb", "mlflow"} & set(job.spec.observability.tracking.loggers):
        wanted.add(HTTPS)
    return [_ports(*(("TCP", port) for port in sorted(wanted)))] if wanted else []


def _to_operator(settings: ClusterSettings) -> list[Object]:
    if settings.report_url is None:
        return []
    to = [{"namespaceSelector": {"matchLabels": {NAMESPACE_LABEL: settings.operator_namespace}}}]
    # Any port: behind a Service, the port of the pod differs from that of the URL.
    return [{"to": to}]


def _port(url: str) -> int:
    parts = urlsplit(url)
    return parts.port or (HTTPS if parts.scheme == "https" else 80)


def _ports(*ports: tuple[str, int]) -> Object:
    return {"ports": [{"protocol": protocol, "port": port} for protocol, port in ports]}


def _both(port: int) -> tuple[tuple[str, int], tuple[str, int]]:
    return ("UDP", port), ("TCP", port)
