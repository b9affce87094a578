"""Kueue and KubeRay as processes next to a control plane: real queues, without pods that run."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx
import yaml

from e2e.cluster import deadlines, pki
from e2e.cluster.control_plane import ControlPlane
from e2e.cluster.errors import ToolMissing
from e2e.cluster.ports import free_ports
from e2e.cluster.tools import KUBERAY, KUEUE, Say, ensure

LOOPBACK = "127.0.0.1"
FRAMEWORKS = ["ray.io/rayjob", "ray.io/raycluster"]  # of Kueue's configuration
KINDS = {"rayjobs", "rayclusters", "workloads", "workloads/status", "clusterqueues", "resourceflavors", "cohorts"}
METRICS = "/etc/kueue/metrics"
READY_S = 120.0


def configuration(webhook: int, health: int, metrics: int, certificates: str) -> dict[str, Any]:
    """Kueue's own configuration for these ports. PURE."""
    return {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2", "kind": "Configuration", "namespace": "kueue-system",
        "health": {"healthProbeBindAddress": f"{LOOPBACK}:{health}"},
        "metrics": {"bindAddress": f"{LOOPBACK}:{metrics}"},
        "webhook": {"host": LOOPBACK, "port": webhook, "certDir": certificates},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "integrations": {"frameworks": FRAMEWORKS},
    }  # fmt: skip


def on_loopback(manifest: Mapping[str, Any], port: int, authority: str) -> dict[str, Any]:
    """A webhook configuration of Kueue that calls the process instead of a Service, of the kinds used here. PURE."""
    kept = []
    for hook in manifest["webhooks"]:
        if KINDS & {kind for rule in hook["rules"] for kind in rule["resources"]}:
            url = f"https://{LOOPBACK}:{port}{hook['clientConfig']['service']['path']}"
            kept.append({**hook, "clientConfig": {"url": url, "caBundle": authority}})
    return {**manifest, "webhooks": kept}


def converting(manifest: dict[str, Any], port: int, authority: str) -> dict[str, Any]:
    """A custom resource whose versions the process converts; unchanged if it has one only. PURE."""
    if len(manifest["spec"]["versions"]) == 1:
        return manifest
    client = {"url": f"https://{LOOPBACK}:{port}/convert", "caBundle": authority}
    webhook = {"conversionReviewVersions": ["v1"], "clientConfig": client}
    return {**manifest, "spec": {**manifest["spec"], "conversion": {"strategy": "Webhook", "webhook": webhook}}}


@contextmanager
def queues(plane: ControlPlane, say: Say = print) -> Iterator[None]:
    """Kueue and KubeRay, which manage RayJobs and RayClusters of the control plane until the context ends.

    Raises:
        ToolMissing: the user is not root, or the programs are not built and there is no Go.
        ProcessEnded, DeadlinePassed: one of them does not start.
    """
    if os.geteuid() != 0:
        raise ToolMissing("Kueue needs root: it gets an /etc of its own")
    tools = ensure((KUBERAY, KUEUE), say)
    webhook, health, metrics, ray_metrics, ray_health = free_ports(5, random.Random())
    authority = pki.encoded(plane.authority.certificate.read_bytes())
    folder = plane.layout.folder / "kueue"
    folder.mkdir()
    certificate, key = plane.authority.issue(pki.Subject("kueue", "kueue", addresses=(LOOPBACK,)))
    (folder / "tls.crt").write_bytes(certificate.read_bytes())
    (folder / "tls.key").write_bytes(key.read_bytes())
    settings = folder / "configuration.yaml"
    settings.write_text(json.dumps(configuration(webhook, health, metrics, str(folder))), encoding="utf-8")

    kinds = [
        converting(yaml.safe_load(path.read_text()), webhook, authority) for path in sorted(tools.kueue.glob("crd/*"))
    ]
    apply(plane, kinds)
    for path in sorted((tools.kuberay / "crd" / "bases").glob("*.yaml")):
        plane.kubectl("apply", "--server-side", f"--filename={path}")
    apply(plane, [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kueue-system"}}])
    variables = ["env", f"KUBECONFIG={plane.kubeconfig}"]
    plane.daemons.start("kuberay", [
        *variables, str(tools.path(KUBERAY)), "--enable-leader-election=false",
        f"--metrics-addr={LOOPBACK}:{ray_metrics}", f"--health-probe-bind-address={LOOPBACK}:{ray_health}",
    ])  # fmt: skip
    # Kueue reads the certificate of its metrics from a fixed path: it gets an /etc of its own.
    mounted = f'mount -t tmpfs kueue /etc && mkdir -p {METRICS} && ln -s {folder} {METRICS}/certs && exec "$@"'
    plane.daemons.start("kueue", [
        *variables, "unshare", "--mount", "sh", "-c", mounted, "kueue", str(tools.path(KUEUE)),
        f"--config={settings}", "--feature-gates=VisibilityOnDemand=false",
    ])  # fmt: skip
    try:
        await_ready(plane, health)
        hooks = [yaml.safe_load_all((tools.kueue / "webhooks.yaml").read_text())]
        apply(plane, [on_loopback(hook, webhook, authority) for found in hooks for hook in found])
        yield
    finally:
        plane.daemons.stop("kueue")
        plane.daemons.stop("kuberay")


def await_ready(plane: ControlPlane, health: int) -> None:
    """Wait until Kueue says that it is ready, which includes its webhooks.

    Raises:
        ProcessEnded, DeadlinePassed: it does not come up; the message has the last lines of its log.
    """

    def ready() -> bool:
        plane.daemons.check()
        try:
            return httpx.get(f"http://{LOOPBACK}:{health}/readyz", trust_env=False).status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    deadlines.wait_until("Kueue to be ready", READY_S, ready)


def apply(plane: ControlPlane, manifests: list[dict[str, Any]]) -> None:
    """Apply objects, all in one request of kubectl."""
    plane.kubectl("apply", "--server-side", "--filename=-", text="\n---\n".join(map(json.dumps, manifests)))
