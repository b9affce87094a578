"""The bare provider: a whole Kubernetes of processes and network namespaces of this machine."""

import json
import random
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from e2e.cluster import addons, commands, deadlines, pki
from e2e.cluster.api import Api, ApiUnavailable
from e2e.cluster.audit import AuditLog
from e2e.cluster.control_plane import ControlPlane, checked, layout_of, start
from e2e.cluster.errors import ClusterError
from e2e.cluster.fake_nodes import is_ready
from e2e.cluster.images import infrastructure
from e2e.cluster.layered import NodeImage
from e2e.cluster.paths import SOURCES, cache
from e2e.cluster.processes import Daemons, kill, run, runs
from e2e.cluster.provider import NODES, NodeSpec
from e2e.cluster.tools import COREDNS, KUBE, KUBERAY, PAUSE, Say, Tools, ensure, key, locked

from . import configuration, machine
from .network import Network, collisions, links_down, links_up
from .store import ImageStore, Known, load, outdated, tag_command

PROGRAMS = (KUBE, PAUSE, COREDNS, KUBERAY)
NODE_SCRIPT = Path(__file__).parent / "node.sh"


def described(nodes: Sequence[NodeSpec]) -> list[dict[str, Any]]:
    """Nodes as the record of a cluster has them."""
    return [{"name": node.name, "devices": dict(node.devices), "labels": dict(node.labels)} for node in nodes]


def versions() -> dict[str, str]:
    """What the programs of a cluster are built from: a hash for each of their modules."""
    return {program.module: key(SOURCES / program.module) for program in PROGRAMS}


def ports(layout: commands.Layout) -> dict[str, int]:
    """What has to be known of a layout to find the cluster again."""
    names = ("api_port", "etcd_port", "etcd_peer_port", "manager_port", "scheduler_port")
    return {name: getattr(layout, name) for name in names}


class BareCluster:
    """Cluster number `instance` of this machine. Its processes outlive the program that starts them.

    Args:
        images: folder of the store that nodes get their images from; clusters with the same one share them.
    """

    def __init__(
        self, instance: int = 0, say: Say = print, folder: Path | None = None, images: Path | None = None
    ) -> None:
        self.network = Network(instance)
        self._say = say
        base = folder or cache()
        self.folder = base / self.network.bridge
        self._store = ImageStore(images or base / "images")
        self._record = self.folder / "cluster.json"

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"

    @property
    def audit(self) -> AuditLog:
        return AuditLog(self.folder / commands.AUDIT_LOG)

    @property
    def volumes(self) -> Path:
        return self.folder / "volumes"

    @property
    def gateway(self) -> str:
        return self.network.gateway

    def kubectl(self, *arguments: str, text: str | None = None, deadline: float = deadlines.COMMAND) -> str:
        return self.plane().kubectl(*arguments, text=text, deadline=deadline)

    def create(self, nodes: Sequence[NodeSpec] = NODES, images: Sequence[NodeImage] = ()) -> Path:
        """Start the cluster, unless it is running already with these nodes, versions and images.

        A running cluster that lacks an image is created again: nodes get their images when they start.

        Raises:
            ToolMissing: no root, or packages that cannot be installed.
            ClusterError: its addresses are in use on this machine, or it does not come up.
        """
        machine.refuse_long(self.folder)
        machine.install_packages(self._say)
        tools = ensure(PROGRAMS, self._say)
        with self._alone():
            return self._create(tools, nodes, images)

    def _create(self, tools: Tools, nodes: Sequence[NodeSpec], images: Sequence[NodeImage]) -> Path:
        if self.is_running(nodes) and not self._lacks(images):
            self._say("the cluster is running already")
            return self.kubeconfig
        self._delete()
        self._refuse_collisions()
        self._store.add([*infrastructure(tools), *images], self._say)
        self.volumes.mkdir(parents=True)
        machine.prepare_folders(self.folder / "folders.json")
        try:
            plane = self._start(tools, nodes)
            self._say("nodes are Ready; waiting for CoreDNS and KubeRay")
            addons.await_available(plane.kubectl, addons.DEPLOYMENTS)
        except BaseException:
            self._say("the cluster did not start and is removed. The last lines of each component's log:")
            for name, text in self.logs().items():
                self._say(f"--- {name}\n{text}")
            self._delete()
            raise
        shutil.copy2(plane.kubeconfig, self.kubeconfig)
        record = {
            "key": versions(),
            "nodes": described(nodes),
            "layout": ports(plane.layout),
            "processes": sorted(identity.name for identity in plane.daemons.recorded()),
        }
        self._record.write_text(json.dumps(record, indent=1), encoding="utf-8")
        return self.kubeconfig

    def is_running(self, nodes: Sequence[NodeSpec]) -> bool:
        """Whether a cluster of these nodes and versions is up, with every process that it began with."""
        if not self._record.exists():
            return False
        record = json.loads(self._record.read_text(encoding="utf-8"))
        if record["key"] != versions() or record["nodes"] != described(nodes):
            return False
        running = [identity.name for identity in Daemons(self.folder, bound=False).recorded() if runs(identity)]
        if sorted(running) != record["processes"]:
            return False
        try:
            return self._all_ready(self.plane())
        except ApiUnavailable:
            return False

    def _lacks(self, images: Sequence[NodeImage]) -> bool:
        return any(outdated(images, Known(node.images).read()) for node in map(self._node, self.nodes()))

    def plane(self) -> ControlPlane:
        """The control plane of the standing cluster: kubectl, a client, the audit log.

        Raises:
            ClusterError: there is none.
        """
        if not self._record.exists():
            raise ClusterError("the cluster is not running: make cluster")
        record = json.loads(self._record.read_text(encoding="utf-8"))
        layout = replace(self._layout(Tools(cache())), **record["layout"])
        return ControlPlane(layout, pki.Authority(layout.pki), Daemons(self.folder, bound=False))

    def api(self, user_agent: str = "e2e") -> Api:
        return self.plane().api(user_agent)

    def await_account(self, namespace: str) -> None:
        self.plane().await_account(namespace)

    def load(self, image: NodeImage) -> None:
        image = image.resolve() if isinstance(image, Path) else image
        with self._alone():
            self._store.add([image], self._say)
            for node in map(self._node, self.nodes()):
                load(node.socket, Known(node.images), image)

    def tag(self, image: str, name: str) -> None:
        for node in map(self._node, self.nodes()):
            run(tag_command(node.socket, image, name))

    def trust_registry(self, address: str) -> None:
        """Let the nodes pull from a registry without TLS at `HOST:PORT`."""
        for node in map(self._node, self.nodes()):
            path, text = configuration.registry(node, address)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")

    def nodes(self) -> list[str]:
        if not self._record.exists():
            return []
        return [node["name"] for node in json.loads(self._record.read_text(encoding="utf-8"))["nodes"]]

    def run_in(self, node: str, *command: str) -> str:
        self._number(node)
        return run(["nsenter", f"--net={machine.NETNS / self.network.namespace(node)}", *command])

    def cut(self, node: str) -> None:
        run(["ip", "link", "set", self.network.link(self._number(node)), "down"])

    def restore(self, node: str) -> None:
        run(["ip", "link", "set", self.network.link(self._number(node)), "up"])

    def logs(self) -> dict[str, str]:
        daemons = Daemons(self.folder, bound=False)
        tails = {path.stem: daemons.tail(path.stem) for path in sorted(daemons.logs.glob("*.log"))}
        for path in sorted((self.folder / "nodes").glob("*/output/*.log")):
            text = path.read_text(encoding="utf-8", errors="replace")
            tails[f"{path.parents[1].name}/{path.stem}"] = "\n".join(text.splitlines()[-15:])
        return tails

    def delete(self) -> None:
        with self._alone():
            self._delete()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One start or end of a cluster at a time on this machine."""
        self._store.folder.mkdir(parents=True, exist_ok=True)
        with locked(self._store.folder, self._say, "start or end of a cluster"):
            yield

    def _delete(self) -> None:
        if self.folder.exists():
            Daemons(self.folder, bound=False).stop_all()
        links = [str(item["ifname"]) for item in json.loads(run(["ip", "-json", "link"]) or "[]")]
        namespaces = [path.name for path in machine.NETNS.iterdir()] if machine.NETNS.exists() else []
        # A node that was never written down, because its start was cut short, is found in its namespace.
        kill(machine.inside([name for name in namespaces if name.startswith(self.network.namespace(""))]))
        for command in links_down(self.network, links, namespaces):
            run(command)
        machine.remove_cgroups(f"{self.network.bridge}-")
        record = self.folder / "folders.json"
        machine.give_back_folders(
            record, [path for path in self.folder.parent.glob("*/folders.json") if path != record]
        )
        if self.folder.exists():
            run(["rm", "-rf", "--one-file-system", str(self.folder)], deadline=deadlines.IMPORT_IMAGE)

    def _start(self, tools: Tools, nodes: Sequence[NodeSpec]) -> ControlPlane:
        """Links, nodes, control plane, in this order; then wait until all nodes are Ready and have their devices."""
        daemons = Daemons(self.folder, bound=False)
        layout = self._layout(tools)
        for command in links_up(self.network, [node.name for node in nodes]):
            run(command)
        self._say(f"starting the control plane at {layout.server} and {len(nodes)} nodes")
        authority = pki.Authority(layout.pki)
        authority.kubeconfig(pki.PROXY, layout.server)
        for number, spec in enumerate(nodes, 1):
            self._start_node(daemons, layout, authority, spec, number)
        plane = start(
            layout,
            daemons,
            {
                "kube-controller-manager": commands.controller_manager(layout),
                "kube-scheduler": commands.scheduler(layout),
            },
        )
        # Applied while nodes start: pods are scheduled as soon as nodes are ready.
        addons.apply(plane.kubectl, self._manifests(plane))
        deadlines.wait_until(
            "all nodes to be Ready",
            deadlines.NODES_READY,
            lambda: checked(daemons, lambda: self._all_ready(plane, len(nodes))),
        )
        addons.add_devices(plane.kubectl, nodes)
        return plane

    def _start_node(
        self, daemons: Daemons, layout: commands.Layout, authority: pki.Authority, spec: NodeSpec, number: int
    ) -> None:
        """One node: its files, its images, its cgroup, and its first process, in separate namespaces."""
        node = configuration.Node(number, spec.name, self.folder / "nodes" / spec.name, layout.pki, self.network)
        for path, text in configuration.files(node).items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        # Not among the logs of pods: there the kubelet removes other files.
        (node.folder / "output").mkdir()
        self._store.copy(node.store, Known(node.images))
        address = self.network.address(number)
        namespace = self.network.namespace(spec.name)
        kubeconfig = authority.kubeconfig(pki.node(spec.name, address), layout.server)
        machine.make_cgroup(namespace)
        daemons.start(
            f"node-{spec.name}",
            [
                "nsenter",
                f"--net={machine.NETNS / namespace}",
                "unshare",
                "--mount",
                "--pid",
                "--uts",
                "--fork",
                "--kill-child",
                "--mount-proc",
                "--propagation=private",
                str(NODE_SCRIPT),
                spec.name,
                str(node.folder),
                str(layout.tools.bin),
                address,
                self.network.pods,
                str(kubeconfig),
                ",".join(f"{key}={value}" for key, value in sorted(spec.labels.items())),
            ],
        )

    def _layout(self, tools: Tools) -> commands.Layout:
        """The control plane, which listens where nodes reach it."""
        layout = layout_of(self.folder, tools, random.Random())
        return replace(layout, address=self.network.gateway, services=self.network.services, whole=True)

    def _manifests(self, plane: ControlPlane) -> list[str]:
        rendered = addons.kuberay(plane.kubectl, plane.layout.tools.kuberay)
        return [addons.coredns(self.network.dns), rendered]

    def _all_ready(self, plane: ControlPlane, count: int | None = None) -> bool:
        with plane.api("e2e-nodes") as api:
            items = api.get("/api/v1/nodes")["items"]
        return len(items) == (len(self.nodes()) if count is None else count) and all(map(is_ready, items))

    def _number(self, name: str) -> int:
        if name not in self.nodes():
            known = (
                f"the nodes are {', '.join(self.nodes())}"
                if self.nodes()
                else "the cluster is not running: make cluster"
            )
            raise ClusterError(f"no node {name}: {known}")
        return self.nodes().index(name) + 1

    def _node(self, name: str) -> configuration.Node:
        return configuration.Node(
            self._number(name), name, self.folder / "nodes" / name, self.folder / "pki", self.network
        )

    def _refuse_collisions(self) -> None:
        routes = json.loads(run(["ip", "-json", "-4", "route"]) or "[]")
        if taken := collisions(self.network, routes):
            raise ClusterError(f"addresses of the cluster are in use on this machine: {', '.join(taken)}")
