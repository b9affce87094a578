"""PURE: NetworkPolicy of a job's pods."""

import re
from collections.abc import Iterable, Iterator
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Any
from urllib.parse import urlsplit

from omni_operator.api import DiffusionRLJob
from omni_operator.api.names import JOB_LABEL, OPEN_ANNOTATION

from .cluster_settings import ClusterSettings
from .pods.containers import METRICS_PORT, variables_of_template
from .pods.head import DASHBOARD
from .pods.storage import HUB_ENDPOINT, downloads_from_hub, trainer_variables
from .pools import pools_of

Object = dict[str, Any]
NAMESPACE_LABEL = "kubernetes.io/metadata.name"
# KubeRay's chart and manifests use different names.
KUBERAY: Object = {"key": "app.kubernetes.io/name", "operator": "In", "values": ["kuberay", "kuberay-operator"]}
# KubeRay gives the name `kuberay` to all Ray pods, too, which would let every job reach the dashboards of all others.
NO_RAY_POD: Object = {"key": "ray.io/cluster", "operator": "DoesNotExist"}
SERVICE = re.compile(r"(?:[^.]+\.)+([^.]+)\.svc(?:\..+)?")  # name of a Service, or of a pod of it, in a namespace
DNS = 53
HTTPS = 443


def render_network_policy(job: DiffusionRLJob, settings: ClusterSettings) -> Object | None:
    """The NetworkPolicy; None if the job disables it."""
    mode = job.spec.security.network_policy
    if mode == "Disabled":
        return None
    own_pods = {"podSelector": {"matchLabels": {JOB_LABEL: job.metadata.name}}}
    scrapers = {"from": [{"namespaceSelector": {}}], **_ports(("TCP", METRICS_PORT))}
    metadata: Object = {"name": job.metadata.name}
    spec: Object = {
        "podSelector": own_pods["podSelector"],
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [own_pods]}, _from_kuberay(settings), scrapers],
    }
    if mode == "DefaultDeny":
        spec["policyTypes"] = ["Ingress", "Egress"]
        outside, open_ports = _outside(_destinations(job))
        spec["egress"] = [{"to": [own_pods]}, _ports(("UDP", DNS), ("TCP", DNS)), *outside, *_to_operator(settings)]
        metadata["annotations"] = {OPEN_ANNOTATION: open_ports or "none"}
    return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata, "spec": spec}


def _from_kuberay(settings: ClusterSettings) -> Object:
    """KubeRay submits the job and polls its status at the dashboard."""
    known = settings.kuberay_namespace
    namespace: Object = {"matchLabels": {NAMESPACE_LABEL: known}} if known else {}
    kuberay = {"namespaceSelector": namespace, "podSelector": {"matchExpressions": [KUBERAY, NO_RAY_POD]}}
    return {"from": [kuberay], **_ports(("TCP", DASHBOARD))}


def _destinations(job: DiffusionRLJob) -> Iterator[str]:
    """URLs of reward servers, stores, model hub and trackers; only the scheme where a service has a default host."""
    yield from (url for scorer in job.spec.reward.scorers if (url := scorer.server_url))
    endpoint = job.spec.storage.endpoint
    if job.spec.uses_s3:
        yield endpoint or "https:"
    if job.spec.sends_to_hub:
        yield trainer_variables(job).get(HUB_ENDPOINT) or (not job.spec.uses_s3 and endpoint) or "https:"
    for pool in pools_of(job):
        if downloads_from_hub(job, pool):
            yield variables_of_template(pool.pod_template).get(HUB_ENDPOINT) or "https:"
    if {"wandb", "mlflow"} & set(job.spec.observability.tracking.loggers):
        yield "https:"


def _outside(urls: Iterable[str]) -> tuple[list[Object], str]:
    """Rules for URLs, and the ports that they open to every address: a NetworkPolicy cannot name hosts."""
    rules: dict[str, Object] = {}
    ports: set[int] = set()
    for url in urls:
        parts = urlsplit(url)
        host = parts.hostname or ""
        port = parts.port or (HTTPS if parts.scheme == "https" else 80)
        if address := _address(host):
            rules[f"{address}:{port}"] = {"to": [{"ipBlock": {"cidr": str(address)}}], **_ports(("TCP", port))}
        elif host and "." not in host:
            rules["."] = {"to": [{"podSelector": {}}]}  # a Service here; its pods may have another port
        elif service := SERVICE.fullmatch(host):
            rules[service[1]] = {"to": [{"namespaceSelector": {"matchLabels": {NAMESPACE_LABEL: service[1]}}}]}
        else:
            ports.add(port)
    open_ports = [_ports(*(("TCP", port) for port in sorted(ports)))] if ports else []
    return [*(rules[name] for name in sorted(rules)), *open_ports], ", ".join(f"TCP {port}" for port in sorted(ports))


def _address(host: str) -> IPv4Network | IPv6Network | None:
    """The address that a host is, as a network of one; None if it is a name."""
    try:
        return ip_network(host)
    except ValueError:
        return None


def _to_operator(settings: ClusterSettings) -> list[Object]:
    if settings.report_url is None:
        return []
    to = [{"namespaceSelector": {"matchLabels": {NAMESPACE_LABEL: settings.operator_namespace}}}]
    # Any port: behind a Service, the pod's port can differ from the URL's.
    return [{"to": to}]


def _ports(*ports: tuple[str, int]) -> Object:
    return {"ports": [{"protocol": protocol, "port": port} for protocol, port in ports]}
