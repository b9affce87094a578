"""Add-ons of every cluster: fake accelerators, CoreDNS, KubeRay."""

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from . import deadlines
from .images import KUBERAY_IMAGE
from .provider import NodeSpec, device_patch, offers

MANIFESTS = Path(__file__).parent / "manifests"
KUBERAY_NAMESPACE = "ray-system"
DEPLOYMENTS = (("kube-system", "coredns"), (KUBERAY_NAMESPACE, "kuberay-operator"))

Kubectl = Callable[..., str]


def coredns(address: str) -> str:
    """CoreDNS at this service address."""
    return (MANIFESTS / "coredns.yaml").read_text(encoding="utf-8").replace("@DNS@", address)


def kuberay_kustomization(resources: str) -> dict[str, Any]:
    """KubeRay as its authors deploy it, with the image built here, small requests and a prompt probe."""
    container = "/spec/template/spec/containers/0"
    patches: list[dict[str, Any]] = [
        {"op": "replace", "path": f"{container}/image", "value": KUBERAY_IMAGE.name},
        {"op": "replace", "path": f"{container}/imagePullPolicy", "value": "Never"},
        {
            "op": "replace",
            "path": f"{container}/resources",
            "value": {"requests": {"cpu": "50m", "memory": "100Mi"}},
        },
        {"op": "replace", "path": f"{container}/readinessProbe/initialDelaySeconds", "value": 1},
        {"op": "replace", "path": f"{container}/readinessProbe/periodSeconds", "value": 1},
    ]
    return {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": KUBERAY_NAMESPACE,
        "resources": [resources],
        "patches": [{"target": {"kind": "Deployment", "name": "kuberay-operator"}, "patch": json.dumps(patches)}],
    }


def kuberay(kubectl: Kubectl, source: Path) -> str:
    """Everything of KubeRay, rendered once for each `source` and each set of patches; no cluster is asked."""
    kustomization = json.dumps(kuberay_kustomization("../default"), indent=1)
    folder = source / f"rendered-{hashlib.sha256(kustomization.encode()).hexdigest()[:16]}"
    rendered = folder / "all.yaml"
    if not rendered.exists():
        folder.mkdir(exist_ok=True)
        (folder / "kustomization.yaml").write_text(kustomization, encoding="utf-8")
        part = folder / "part.yaml"
        part.write_text(kubectl("kustomize", "--load-restrictor=LoadRestrictionsNone", str(folder)), encoding="utf-8")
        part.rename(rendered)
    return rendered.read_text(encoding="utf-8")


def add_devices(kubectl: Kubectl, nodes: Sequence[NodeSpec]) -> None:
    """Give nodes their devices, and wait until each offers them.

    A kubelet keeps resources that it finds in its node's status, but one that is just writing may overwrite them.

    Raises:
        DeadlinePassed: a kubelet takes them away again.
    """
    for node in nodes:
        add_device(kubectl, node)

    def all_offered() -> bool:
        items = {
            item["metadata"]["name"]: item for item in json.loads(kubectl("get", "nodes", "--output=json"))["items"]
        }
        without = [node for node in nodes if not offers(items[node.name], node.devices)]
        for node in without:
            add_device(kubectl, node)
        return not without

    deadlines.wait_until("nodes to offer their devices", deadlines.NODES_READY, all_offered)


def add_device(kubectl: Kubectl, node: NodeSpec) -> None:
    """Write the devices of one node into its status."""
    if node.devices:
        patch = json.dumps(device_patch(node.devices))
        kubectl("patch", "node", node.name, "--subresource=status", "--type=json", f"--patch={patch}")


def apply(kubectl: Kubectl, manifests: Sequence[str]) -> None:
    """Apply the manifests; KubeRay's namespace first, which its own do not make."""
    for manifest in (namespace(KUBERAY_NAMESPACE), *manifests):
        kubectl("apply", "--server-side", "--filename=-", text=manifest)


def await_available(kubectl: Kubectl, deployments: Sequence[tuple[str, str]]) -> None:
    """Wait until each deployment, a (namespace, name), is available."""
    for space, name in deployments:
        timeout = f"--timeout={deadlines.ADDONS_READY:g}s"
        kubectl(
            "rollout", "status", f"--namespace={space}", f"deployment/{name}", timeout, deadline=deadlines.ADDONS_READY
        )


def namespace(name: str) -> str:
    """A namespace, as a manifest."""
    return json.dumps({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
