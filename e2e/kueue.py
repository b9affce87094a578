"""Kueue as a process next to a control plane, with KubeRay as another one, or next to a whole cluster, which has it."""

import json
import os
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx2
import yaml

from e2e.cluster import deadlines, pki
from e2e.cluster.control_plane import ControlPlane
from e2e.cluster.errors import ToolMissing
from e2e.cluster.ports import free_ports
from e2e.cluster.tools import KUEUE, Say, Tools, ensure
from e2e.kuberay import LOOPBACK, kuberay

FRAMEWORKS = ["ray.io/rayjob", "ray.io/raycluster"]  # integrations in Kueue's configuration
KINDS = {"rayjobs", "rayclusters", "workloads", "workloads/status", "clusterqueues", "resourceflavors", "cohorts"}
METRICS = "/etc/kueue/metrics"
VERSION = "kueue.x-k8s.io/v1beta2"
QUEUE = "team-a"
CLUSTER_QUEUE = "all"
URGENT = "urgent"  # a priority class
SPACE: dict[str, Any] = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kueue-system"}}
READY_S = 120.0


def queue_objects(quota: Mapping[str, int], *, namespace: str = "default", stop: str = "None") -> list[dict[str, Any]]:
    """A queue, where urgent work preempts the rest, with CPUs and memory for all. PURE.

    Args:
        quota: quota of other resources.
        namespace: namespace whose jobs may name the queue.
        stop: the queue's `stopPolicy`; anything but `None` stops admission.
    """
    version = {"apiVersion": VERSION}
    quotas = {"cpu": "100", "memory": "1000Gi", **{name: str(value) for name, value in quota.items()}}
    resources = [{"name": name, "nominalQuota": value} for name, value in quotas.items()]
    return [
        {**version, "kind": "ResourceFlavor", "metadata": {"name": "nodes"}},
        {
            **version,
            "kind": "ClusterQueue",
            "metadata": {"name": CLUSTER_QUEUE},
            "spec": {
                "namespaceSelector": {},
                "stopPolicy": stop,
                "preemption": {"withinClusterQueue": "LowerPriority"},
                "resourceGroups": [
                    {"coveredResources": [*quotas], "flavors": [{"name": "nodes", "resources": resources}]},
                ],
            },
        },
        {
            **version,
            "kind": "LocalQueue",
            "metadata": {"name": QUEUE, "namespace": namespace},
            "spec": {"clusterQueue": CLUSTER_QUEUE},
        },
        {**version, "kind": "WorkloadPriorityClass", "metadata": {"name": URGENT}, "value": 1000},
    ]


def configuration(webhook: int, health: int, metrics: int, certificates: str) -> dict[str, Any]:
    """Kueue's own configuration for these ports. PURE."""
    return {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "namespace": "kueue-system",
        "health": {"healthProbeBindAddress": f"{LOOPBACK}:{health}"},
        "metrics": {"bindAddress": f"{LOOPBACK}:{metrics}"},
        "webhook": {"host": LOOPBACK, "port": webhook, "certDir": certificates},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "integrations": {"frameworks": FRAMEWORKS},
    }


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
    with kuberay(plane, say), _kueue(plane, say):
        yield


@contextmanager
def queue_on_cluster(plane: ControlPlane, objects: list[dict[str, Any]], say: Say = print) -> Iterator[None]:
    """Kueue and a queue next to a whole cluster, which has KubeRay. Nothing of them is left when the context ends.

    Args:
        objects: `queue_objects`.

    Raises:
        As `queues`. CommandFailed: a job in the queue still holds quota at the end.
    """
    tools = ensure((KUEUE,), say)
    try:
        with _kueue(plane, say):
            apply(plane, objects)
            try:
                yield
            finally:
                remove(plane, objects)  # while Kueue runs, which ends their finalizers
    finally:
        remove(plane, [*_hooks(tools), SPACE, *_kinds(tools)])


@contextmanager
def _kueue(plane: ControlPlane, say: Say) -> Iterator[None]:
    """A process of Kueue, which manages RayJobs and RayClusters until the context ends."""
    if os.geteuid() != 0:
        raise ToolMissing("Kueue needs root: it gets an /etc of its own")
    tools = ensure((KUEUE,), say)
    webhook, health, metrics = free_ports(3, random.Random())
    authority = pki.encoded(plane.authority.certificate.read_bytes())
    folder = plane.layout.folder / "kueue"
    folder.mkdir(exist_ok=True)
    certificate, key = plane.authority.issue(pki.Subject("kueue", "kueue", names=(LOOPBACK,)))
    (folder / "tls.crt").write_bytes(certificate.read_bytes())
    (folder / "tls.key").write_bytes(key.read_bytes())
    settings = folder / "configuration.yaml"
    settings.write_text(json.dumps(configuration(webhook, health, metrics, str(folder))), encoding="utf-8")

    kinds = [converting(kind, webhook, authority) for kind in _kinds(tools)]
    apply(plane, [*kinds, SPACE])
    names = [f"crd/{kind['metadata']['name']}" for kind in kinds]
    plane.kubectl("wait", "--for=condition=Established", *names, "--timeout=30s")  # Kueue ends without one of them
    # Kueue reads the certificate of its metrics from a fixed path, so it gets a private /etc.
    mounted = f'mount -t tmpfs kueue /etc && mkdir -p {METRICS} && ln -s {folder} {METRICS}/certs && exec "$@"'
    plane.daemons.start(
        "kueue",
        [
            "env",
            f"KUBECONFIG={plane.kubeconfig}",
            "unshare",
            "--mount",
            "sh",
            "-c",
            mounted,
            "kueue",
            str(tools.path(KUEUE)),
            f"--config={settings}",
            "--feature-gates=VisibilityOnDemand=false,ElasticJobsViaWorkloadSlices=true",
        ],
    )
    try:
        await_ready(plane, health)
        apply(plane, [on_loopback(hook, webhook, authority) for hook in _hooks(tools)])
        yield
    finally:
        plane.daemons.stop("kueue")


def _kinds(tools: Tools) -> list[dict[str, Any]]:
    """Kueue's custom resources."""
    return [yaml.safe_load(path.read_text()) for path in sorted(tools.kueue.glob("crd/*"))]


def _hooks(tools: Tools) -> list[dict[str, Any]]:
    """Kueue's webhook configurations."""
    return list(yaml.safe_load_all((tools.kueue / "webhooks.yaml").read_text()))


def await_ready(plane: ControlPlane, health: int) -> None:
    """Wait until Kueue says that it is ready, which includes its webhooks.

    Raises:
        ProcessEnded, DeadlinePassed: it does not come up; the message has the last lines of its log.
    """

    def ready() -> bool:
        plane.daemons.check()
        try:
            return httpx2.get(f"http://{LOOPBACK}:{health}/readyz", trust_env=False).status_code == httpx2.codes.OK
        except httpx2.TransportError:
            return False

    deadlines.wait_until("Kueue to be ready", READY_S, ready)


def apply(plane: ControlPlane, manifests: list[dict[str, Any]]) -> None:
    """Apply objects, all in one request of kubectl."""
    plane.kubectl("apply", "--server-side", "--filename=-", text="\n---\n".join(map(json.dumps, manifests)))


def remove(plane: ControlPlane, manifests: list[dict[str, Any]]) -> None:
    """Delete objects, all in one request of kubectl, and wait until they are gone."""
    text = "\n---\n".join(map(json.dumps, manifests))
    plane.kubectl("delete", "--ignore-not-found", "--filename=-", text=text)
