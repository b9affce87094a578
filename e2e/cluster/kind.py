"""The kind provider: the same cluster in containers, where a Docker daemon answers."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import addons, commands, deadlines
from .audit import AuditLog
from .errors import ClusterError, CommandFailed
from .images import KUBERAY_IMAGE, infrastructure
from .layered import LayeredImage, NodeImage
from .paths import cache
from .processes import run
from .provider import NODES, NodeSpec
from .tools import KIND, KUBE, KUBERAY, Say, Tools, ensure

NAME = "omni-e2e"
# Mount point of the audit policy and log inside the control plane's container.
AUDIT = "/var/log/omni-audit"


def docker_answers() -> bool:
    """Whether there is a Docker client whose daemon answers."""
    if shutil.which("docker") is None:
        return False
    try:
        done = subprocess.run(["docker", "info"], capture_output=True, timeout=deadlines.COMMAND, check=False)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def configuration(nodes: Sequence[NodeSpec], folder: Path, volumes: Path) -> dict[str, Any]:
    """kind's own settings: a worker for each node, and an API server that writes its audit log into `folder`. PURE.

    Args:
        volumes: a folder that every worker has under the same path.
    """
    mount = {"hostPath": str(folder), "containerPath": AUDIT}
    extra = {
        "audit-policy-file": f"{AUDIT}/audit-policy.json",
        "audit-log-path": f"{AUDIT}/{commands.AUDIT_LOG}",
        "audit-log-mode": "blocking",
    }
    volume = {"name": "audit", "hostPath": AUDIT, "mountPath": AUDIT, "readOnly": False, "pathType": "Directory"}
    # Added to kind's own arguments, which a patch by merging would replace.
    steps = [_argument("apiServer", name, value) for name, value in extra.items()]
    steps.append(_argument("controllerManager", "node-monitor-grace-period", "16s"))
    steps.append({"op": "add", "path": "/apiServer/extraVolumes", "value": [volume]})
    patch = {
        "group": "kubeadm.k8s.io",
        "version": "v1beta4",  # what this version of kind writes for its node image
        "kind": "ClusterConfiguration",
        "patch": json.dumps(steps),
    }
    first = {"role": "control-plane", "extraMounts": [mount], "kubeadmConfigPatchesJSON6902": [patch]}
    shared = {"hostPath": str(volumes), "containerPath": str(volumes)}
    workers = [{"role": "worker", "labels": dict(node.labels), "extraMounts": [shared]} for node in nodes]
    return {"kind": "Cluster", "apiVersion": "kind.x-k8s.io/v1alpha4", "name": NAME, "nodes": [first, *workers]}


def _argument(component: str, name: str, value: str) -> dict[str, Any]:
    """A step that gives a component of the control plane one argument more."""
    return {"op": "add", "path": f"/{component}/extraArgs/-", "value": {"name": name, "value": value}}


def worker_names(count: int) -> list[str]:
    """Names that kind gives its workers, in their order. PURE."""
    return [f"{NAME}-worker{number if number > 1 else ''}" for number in range(1, count + 1)]


def create_command(tools: Tools, kubeconfig: Path) -> list[str]:
    """Make the cluster from the settings on standard input. PURE."""
    return [
        tools.program("kind"), "create", "cluster", f"--name={NAME}", "--config=-", f"--kubeconfig={kubeconfig}",
        f"--wait={deadlines.NODES_READY:g}s",
    ]  # fmt: skip


def load_command(tools: Tools, archive: Path) -> list[str]:
    """Put an archive on every node. PURE."""
    return [tools.program("kind"), "load", "image-archive", str(archive), f"--name={NAME}"]


def delete_command(tools: Tools, kubeconfig: Path) -> list[str]:
    """Remove the cluster, also one that is half there. PURE."""
    return [tools.program("kind"), "delete", "cluster", f"--name={NAME}", f"--kubeconfig={kubeconfig}"]


def cut_commands(node: str, *, cut: bool) -> list[list[str]]:
    """Drop everything to and from a node, or no longer. Its addresses and routes stay. PURE."""
    change = "--insert" if cut else "--delete"
    return [
        ["docker", "exec", node, "iptables", change, chain, flag, "eth0", "--jump", "DROP"]
        for chain, flag in (("INPUT", "--in-interface"), ("OUTPUT", "--out-interface"))
    ]


def logs_command(node: str) -> list[str]:
    """The last lines of a node's services. PURE."""
    return ["docker", "exec", node, "journalctl", "--no-pager", "--lines=30"]


class KindCluster:
    """The one kind cluster of this machine; kind brings its own CoreDNS."""

    def __init__(self, say: Say = print, folder: Path | None = None) -> None:
        self._say = say
        self.folder = (folder or cache()) / "kind"

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"

    @property
    def audit(self) -> AuditLog:
        return AuditLog(self.folder / "audit" / commands.AUDIT_LOG)

    @property
    def volumes(self) -> Path:
        return self.folder / "volumes"

    def create(self, nodes: Sequence[NodeSpec] = NODES, images: Sequence[NodeImage] = ()) -> Path:
        """Start the cluster, unless it is running already with as many nodes.

        Raises:
            ToolMissing: a program has to be built and Go is missing.
            CommandFailed: kind failed; the message has its output.
        """
        tools = ensure((KUBE, KIND, KUBERAY), self._say)
        if self._names(tools) == worker_names(len(nodes)):
            self._say("the cluster is running already")
        else:
            self._make(tools, nodes)
        for image in images:
            self._say(f"loading the image {image.name}")
            self.load(image)
        return self.kubeconfig

    def _make(self, tools: Tools, nodes: Sequence[NodeSpec]) -> None:
        self.delete()
        self.volumes.mkdir(parents=True)
        self.audit.path.parent.mkdir(parents=True)
        policy = self.audit.path.parent / "audit-policy.json"
        policy.write_text(json.dumps(commands.AUDIT_POLICY), encoding="utf-8")
        settings = json.dumps(configuration(nodes, policy.parent, self.volumes))
        self._say("kind makes the cluster; the first time it fetches its node image")
        run(create_command(tools, self.kubeconfig), text=settings, deadline=deadlines.IMPORT_IMAGE)
        for archive in infrastructure(tools, [KUBERAY_IMAGE]):
            self.load(archive)
        own = [NodeSpec(name, node.devices) for name, node in zip(worker_names(len(nodes)), nodes, strict=True)]
        addons.add_devices(self.kubectl, own)
        rendered = addons.kuberay(self.kubectl, tools.kuberay)
        addons.apply(self.kubectl, [rendered])
        addons.await_available(self.kubectl, [(addons.KUBERAY_NAMESPACE, "kuberay-operator")])

    def kubectl(self, *arguments: str, text: str | None = None, deadline: float = deadlines.COMMAND) -> str:
        program = ensure((KUBE,), self._say).program("kubectl")
        return run([program, f"--kubeconfig={self.kubeconfig}", *arguments], text=text, deadline=deadline)

    def load(self, image: NodeImage) -> None:
        if isinstance(image, LayeredImage):
            raise ClusterError(f"kind takes archives, and {image.name} is in buildah's storage: build it with Docker")
        run(load_command(ensure((KIND,), self._say), image), deadline=deadlines.IMPORT_IMAGE)

    def nodes(self) -> list[str]:
        return self._names(ensure((KIND,), self._say))

    def cut(self, node: str) -> None:
        for command in cut_commands(self._known(node), cut=True):
            run(command)

    def restore(self, node: str) -> None:
        for command in cut_commands(self._known(node), cut=False):
            run(command)

    def logs(self) -> dict[str, str]:
        return {node: run(logs_command(node)) for node in self.nodes()}

    def delete(self) -> None:
        run(delete_command(ensure((KIND,), self._say), self.kubeconfig), deadline=deadlines.IMPORT_IMAGE)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _names(self, tools: Tools) -> list[str]:
        """Workers that are there now."""
        try:
            listed = run([tools.program("kind"), "get", "nodes", f"--name={NAME}"]).split()
        except CommandFailed:
            return []
        return sorted((name for name in listed if "-worker" in name), key=lambda name: (len(name), name))

    def _known(self, name: str) -> str:
        if name not in self.nodes():
            known = (
                f"the nodes are {', '.join(self.nodes())}"
                if self.nodes()
                else "the cluster is not running: make cluster"
            )
            raise ClusterError(f"no node {name}: {known}")
        return name
