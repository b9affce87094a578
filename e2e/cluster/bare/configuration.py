"""Configuration files of the programs on a bare node. PURE. Written as JSON, which every YAML parser reads."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.cluster.images import PAUSE_IMAGE

from .network import Network


@dataclass(frozen=True, slots=True)
class Node:
    """A node: its number from 1, its name, its folder, and the cluster's folder of certificates."""

    number: int
    name: str
    folder: Path
    pki: Path
    network: Network

    @property
    def socket(self) -> Path:
        return self.folder / "containerd.sock"

    @property
    def store(self) -> Path:
        """containerd's root: images and what runs."""
        return self.folder / "containerd"

    @property
    def registries(self) -> Path:
        """containerd's folder of registries, which it reads at each pull."""
        return self.folder / "registries"

    @property
    def images(self) -> Path:
        """The file with the fingerprints of its images."""
        return self.folder / "images.json"


def containerd_store(root: Path, run: Path, socket: Path) -> str:
    """containerd that only keeps images."""
    return (
        f'version = 2\nroot = "{root}"\nstate = "{run}"\noom_score = 0\n'
        f'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n[grpc]\naddress = "{socket}"\n'
    )


def containerd(node: Node) -> str:
    """containerd of a node. A machine without CAP_SYS_RESOURCE cannot lower OOM scores, so none is."""
    return f"""version = 2
root = "{node.store}"
state = "{node.folder / "run"}"
oom_score = 0
[grpc]
  address = "{node.socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE.name}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{node.folder / "cni"}"
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "{node.registries}"
"""


def registry(node: Node, address: str) -> tuple[Path, str]:
    """The file that lets a node pull from a registry without TLS at `HOST:PORT`, and its content.

    containerd 1.6 ignores a file without a table of hosts.
    """
    text = f'server = "http://{address}"\n[host."http://{address}"]\n  capabilities = ["pull", "resolve"]\n'
    return node.registries / address / "hosts.toml", text


def cni(node: Node) -> dict[str, Any]:
    """Pods on a bridge of the node. Their addresses stay as they are between nodes: no masquerade here."""
    ranges = [[{"subnet": node.network.pods_of(node.number)}]]
    return {
        "cniVersion": "1.0.0",
        "name": "e2e",
        "plugins": [
            {
                "type": "bridge",
                "bridge": "cni0",
                "isGateway": True,
                "ipMasq": False,
                "hairpinMode": True,
                "ipam": {
                    "type": "host-local",
                    "dataDir": str(node.folder / "ipam"),
                    "ranges": ranges,
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": True}},
        ],
    }


def kubelet(node: Node) -> dict[str, Any]:
    """A kubelet that shares its kernel with others: it must not set what belongs to the machine."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(node.pki / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(node.pki / f"{node.name}.crt"),
        "tlsPrivateKeyFile": str(node.pki / f"{node.name}.key"),
        "containerRuntimeEndpoint": f"unix://{node.socket}",
        # Without this a kubelet since 1.35 refuses a machine with cgroups v1.
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{node.network.namespace(node.name)}",
        "enforceNodeAllocatable": [],
        "oomScoreAdj": 0,
        "failSwapOn": False,
        "clusterDNS": [node.network.dns],
        "clusterDomain": "cluster.local",
        "resolvConf": str(node.folder / "resolv.conf"),
        "podLogsDir": str(node.folder / "logs"),
        "volumePluginDir": str(node.folder / "volume-plugins"),
        "maxPods": 60,
        # The disk is the machine's: how full it is says nothing about the node.
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "0%",
            "imagefs.available": "0%",
            "nodefs.inodesFree": "0%",
        },
        "imageGCHighThresholdPercent": 100,
        "nodeStatusUpdateFrequency": "4s",
        "nodeLeaseDurationSeconds": 8,
    }


def proxy(node: Node) -> dict[str, Any]:
    """kube-proxy of a node; limits of connection tracking are the machine's and stay."""
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": str(node.pki / "proxy.kubeconfig")},
        "mode": "iptables",
        "clusterCIDR": node.network.pods,
        "oomScoreAdj": 0,
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        "hostnameOverride": node.name,
    }


def files(node: Node) -> dict[Path, str]:
    """Every file of settings of a node, with its content."""
    return {
        node.folder / "containerd.toml": containerd(node),
        node.folder / "cni" / "10-e2e.conflist": json.dumps(cni(node), indent=1),
        node.folder / "kubelet.yaml": json.dumps(kubelet(node), indent=1),
        node.folder / "proxy.yaml": json.dumps(proxy(node), indent=1),
        # Pods outside the cluster's DNS know no name server: nothing is resolved by chance.
        node.folder / "resolv.conf": "search .\n",
    }
