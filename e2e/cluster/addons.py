"""What every cluster gets beside Kubernetes itself: fake devices, CoreDNS, KubeRay."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from . import waits
from .images import KUBERAY_IMAGE
from .provider import NodeSpec, device_patch

MANIFESTS = Path(__file__).parent / "manifests"
KUBERAY_NAMESPACE = "ray-system"

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


def kuberay(kubectl: Kubectl, source: Path, folder: Path) -> str:
    """Everything of KubeRay, rendered by kubectl; `folder` is where the kustomization is written."""
    folder.mkdir(parents=True, exist_ok=True)
    # kustomize wants a relative path.
    relative = "../" * len(folder.resolve().parts[1:]) + str((source / "default").resolve()).lstrip("/")
    (folder / "kustomization.yaml").write_text(json.dumps(kuberay_kustomization(relative), indent=1), "utf-8")
    return kubectl("kustomize", "--load-restrictor=LoadRestrictionsNone", str(folder))


def add_devices(kubectl: Kubectl, nodes: Sequence[NodeSpec]) -> None:
    """Give nodes their devices and labels."""
    for node in nodes:
        if node.devices:
            patch = json.dumps(device_patch(node.devices))
            kubectl("patch", "node", node.name, "--subresource=status", "--type=json", f"--patch={patch}")
        if node.labels:
            kubectl(
                "label", "--overwrite", "node", node.name, *(f"{key}={value}" for key, value in node.labels.items())
            )


def install(kubectl: Kubectl, manifests: Sequence[str], deployments: Sequence[tuple[str, str]]) -> None:
    """Apply the manifests, then wait until each deployment, a (namespace, name), is available."""
    kubectl("apply", "--server-side", "--filename=-", text=namespace(KUBERAY_NAMESPACE))
    for manifest in manifests:
        kubectl("apply", "--server-side", "--filename=-", text=manifest)
    for place, name in deployments:
        timeout = f"--timeout={waits.ADDONS_READY:g}s"
        kubectl("rollout", "status", f"--namespace={place}", f"deployment/{name}", timeout, deadline=waits.ADDONS_READY)


def namespace(name: str) -> str:
    """A namespace, as a manifest."""
    return json.dumps({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
