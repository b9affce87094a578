"""The interface of providers of whole clusters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

from . import deadlines
from .api import Api
from .audit import AuditLog
from .layered import NodeImage


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A node and the devices it seems to have, by resource name. Its name is a label of the machine: short."""

    name: str
    devices: Mapping[str, int] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)


# Two pools of accelerators, and a third resource that no code may know by name.
NODES = (
    NodeSpec("nvidia", {"nvidia.com/gpu": 8}, {"pool": "nvidia"}),
    NodeSpec("ascend", {"huawei.com/Ascend910": 8}, {"pool": "ascend"}),
    NodeSpec("other", {"example.com/tpu": 4}, {"pool": "other"}),
)


class Cluster(Protocol):
    """A cluster with KubeRay on it. Every method may be called again; `delete` also where nothing is there."""

    @property
    def audit(self) -> AuditLog:
        """The log of every call to its API server."""

    @property
    def volumes(self) -> Path:
        """A folder of this machine that pods find under the same path on every node; it ends with the cluster."""

    @property
    def gateway(self) -> str:
        """The address of this machine for pods."""

    def is_running(self, nodes: Sequence[NodeSpec]) -> bool:
        """Whether a cluster of these nodes is up, as its last complete start left it."""

    def create(self, nodes: Sequence[NodeSpec] = NODES, images: Sequence[NodeImage] = ()) -> Path:
        """Bring it up, with CoreDNS, KubeRay and these images, and return an administrator's kubeconfig."""

    def kubectl(self, *arguments: str, text: str | None = None, deadline: float = deadlines.COMMAND) -> str:
        """What kubectl prints.

        Raises:
            CommandFailed: kubectl failed.
        """

    def api(self, user_agent: str = "e2e") -> Api:
        """An administrator's client; its user agent tells its calls apart in the audit log."""

    def await_account(self, namespace: str) -> None:
        """Pods are refused until a controller has made the namespace's account: wait for that."""

    def load(self, image: NodeImage) -> None:
        """Put an image on every node."""

    def tag(self, image: str, name: str) -> None:
        """Give an image of the nodes a second name, until the cluster is removed."""

    def nodes(self) -> list[str]:
        """Names of the nodes that run pods."""

    def run_in(self, node: str, *command: str) -> str:
        """What a program prints in the network of a node.

        Raises:
            ClusterError: there is no such node, or the program failed.
        """

    def cut(self, node: str) -> None:
        """Take a node off the network; its pods run on."""

    def restore(self, node: str) -> None:
        """Put a node back on the network."""

    def logs(self) -> dict[str, str]:
        """The last lines of each component, by its name."""

    def delete(self) -> None:
        """Leave no process, mount, network namespace or file of the cluster."""


def device_patch(devices: Mapping[str, int]) -> list[dict[str, Any]]:
    """A JSON patch of a node's status: devices that a kubelet keeps although no plug-in reports them."""
    return [
        {"op": "add", "path": f"/status/{part}/{name.replace('~', '~0').replace('/', '~1')}", "value": str(count)}
        for name, count in sorted(devices.items())
        for part in ("capacity", "allocatable")
    ]


def offers(node: Mapping[str, Any], devices: Mapping[str, int]) -> bool:
    """Whether pods may ask a node for these devices."""
    status = node["status"]
    parts = (status.get("capacity", {}), status.get("allocatable", {}))
    return all(part.get(name) == str(count) for part in parts for name, count in devices.items())


def node_path(name: str, subresource: str = "") -> str:
    """Path of a node in the API."""
    return f"/api/v1/nodes/{quote(name)}" + (f"/{subresource}" if subresource else "")
