"""Settings and command lines of kind. PURE."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from e2e.cluster import commands, deadlines
from e2e.cluster.provider import NodeSpec
from e2e.cluster.tools import Tools

# Mount point of the audit policy and log inside the control plane's container.
AUDIT = "/var/log/omni-audit"
# The address that kind's service range gives to the name server.
DNS = "10.96.0.10"
GRACE_PERIOD = ("node-monitor-grace-period", "16s")
AUDIT_FLAGS = {
    "audit-policy-file": f"{AUDIT}/audit-policy.json",
    "audit-log-path": f"{AUDIT}/{commands.AUDIT_LOG}",
    "audit-log-mode": "blocking",
}
# kind writes the first for Kubernetes before 1.36, the second since, and ignores patches of any other version.
LISTED = {"v1beta3": False, "v1beta4": True}
# Without this a kubelet since 1.35 refuses a machine with cgroups v1. Workers get the settings of the first node.
KUBELET_PATCH = {
    "group": "kubelet.config.k8s.io",
    "version": "v1beta1",
    "kind": "KubeletConfiguration",
    "patch": json.dumps([{"op": "add", "path": "/failCgroupV1", "value": False}]),
}


def configuration(
    name: str, nodes: Sequence[NodeSpec], folder: Path, volumes: Path, pods: str, *, own_dns: bool = False
) -> dict[str, Any]:
    """kind's own settings: a worker for each node, and an API server that writes its audit log into `folder`.

    Args:
        volumes: a folder that every worker has under the same path.
        pods: the range of addresses of pods.
        own_dns: the cluster gets CoreDNS later, because the node image has none.
    """
    mount = {"hostPath": str(folder), "containerPath": AUDIT}
    first = {
        "role": "control-plane",
        "extraMounts": [mount],
        "kubeadmConfigPatchesJSON6902": [
            *(patch for version in LISTED for patch in _patches(version, own_dns=own_dns)),
            KUBELET_PATCH,
        ],
    }
    shared = {"hostPath": str(volumes), "containerPath": str(volumes)}
    workers = [{"role": "worker", "labels": dict(node.labels), "extraMounts": [shared]} for node in nodes]
    networking: dict[str, Any] = {"podSubnet": pods}
    if own_dns:
        # A CoreDNS that knows the cluster alone refuses names in the engine's domain, and gRPC then gives up.
        networking["dnsSearch"] = []
    return {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "name": name,
        "nodes": [first, *workers],
        "networking": networking,
    }


def _patches(version: str, *, own_dns: bool) -> list[dict[str, str]]:
    """JSON patches of kind's kubeadm configuration, for one version of kubeadm's API.

    They add to kind's arguments, which a merge patch would replace.
    """
    volume = {"name": "audit", "hostPath": AUDIT, "mountPath": AUDIT, "readOnly": False, "pathType": "Directory"}
    steps = [_argument(version, "apiServer", name, value) for name, value in AUDIT_FLAGS.items()]
    steps.append(_argument(version, "controllerManager", *GRACE_PERIOD))
    steps.append({"op": "add", "path": "/apiServer/extraVolumes", "value": [volume]})
    patched = {"ClusterConfiguration": steps}
    if own_dns:
        patched["InitConfiguration"] = [{"op": "add", "path": "/skipPhases/-", "value": "addon/coredns"}]
    return [
        {"group": "kubeadm.k8s.io", "version": version, "kind": kind, "patch": json.dumps(steps)}
        for kind, steps in patched.items()
    ]


def _argument(version: str, component: str, name: str, value: str) -> dict[str, Any]:
    """A step that gives a component of the control plane one argument more."""
    path = f"/{component}/extraArgs"
    if LISTED[version]:
        return {"op": "add", "path": f"{path}/-", "value": {"name": name, "value": value}}
    return {"op": "add", "path": f"{path}/{name}", "value": value}


def worker_names(cluster: str, count: int) -> list[str]:
    """Names that kind gives the workers of a cluster, in their order."""
    return [f"{cluster}-worker{number if number > 1 else ''}" for number in range(1, count + 1)]


def create_command(tools: Tools, name: str, kubeconfig: Path, image: str | None = None) -> list[str]:
    """Make the cluster from the settings on standard input; of a start that fails the nodes stay, for their logs."""
    return [
        tools.program("kind"),
        "create",
        "cluster",
        f"--name={name}",
        "--config=-",
        f"--kubeconfig={kubeconfig}",
        f"--wait={deadlines.NODES_READY:g}s",
        "--retain",
        *([f"--image={image}"] if image else ()),
    ]


def load_command(tools: Tools, name: str, archives: Sequence[Path]) -> list[str]:
    """Put archives on every node."""
    return [tools.program("kind"), "load", "image-archive", *map(str, archives), f"--name={name}"]


def cut_commands(*, cut: bool) -> list[list[str]]:
    """Commands inside a node: drop everything to and from it, or no longer. Its addresses and routes stay."""
    change = "--insert" if cut else "--delete"
    return [
        ["iptables", change, chain, flag, "eth0", "--jump", "DROP"]
        for chain, flag in (("INPUT", "--in-interface"), ("OUTPUT", "--out-interface"))
    ]
