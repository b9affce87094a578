"""The kind provider: the same cluster in containers of Docker or podman."""

import base64
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from ruamel.yaml import YAML

from e2e.cluster import addons, commands, deadlines
from e2e.cluster.api import Api
from e2e.cluster.audit import AuditLog
from e2e.cluster.bare import machine
from e2e.cluster.errors import ClusterError, CommandFailed
from e2e.cluster.images import INFRASTRUCTURE, infrastructure
from e2e.cluster.layered import LayeredImage, NodeImage, take
from e2e.cluster.paths import cache
from e2e.cluster.processes import run
from e2e.cluster.provider import NODES, NodeSpec
from e2e.cluster.tools import COREDNS, KIND, KUBE, KUBERAY, PAUSE, Say, Tools, ensure, locked

from . import engine, node_image, settings
from .engine import Container, Engine
from .faults import explain

NAME = "omni-e2e"
PROGRAMS = (KUBE, KIND, KUBERAY, PAUSE, COREDNS)
# Processes of kind end with the program that starts them.
BOUND = ("setpriv", "--pdeathsig", "KILL", "--")
CTR = ("ctr", "--namespace=k8s.io")


class KindCluster:
    """Cluster number `instance` of this machine.

    Its containers are those with a folder of the cluster's own folder; they are removed by ID, never by name.
    """

    def __init__(self, say: Say = print, folder: Path | None = None, instance: int = 0) -> None:
        self._say = say
        self._base = folder or cache()
        self.name = f"{NAME}-{instance}" if instance else NAME
        # Each cluster has a separate pod CIDR: with kind's default, routes to pods of two clusters would conflict.
        self._pods = f"10.{244 + instance}.0.0/16"
        self.folder = self._base / (f"kind{instance}" if instance else "kind")
        self._record = self.folder / "cluster.json"
        self._found: Engine | None = None

    @property
    def engine(self) -> Engine:
        """Docker or podman; chosen once.

        Raises:
            ToolMissing: there is neither.
        """
        if self._found is None:
            self._found = engine.choose(self._base, self._say)
        return self._found

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"

    @property
    def audit(self) -> AuditLog:
        return AuditLog(self.folder / "audit" / commands.AUDIT_LOG)

    @property
    def volumes(self) -> Path:
        return self.folder / "volumes"

    @property
    def gateway(self) -> str:
        (route,) = json.loads(self.engine.inside(self._workers()[0].id, "ip", "-json", "route", "show", "default"))
        return str(route["gateway"])

    def create(self, nodes: Sequence[NodeSpec] = NODES, images: Sequence[NodeImage] = ()) -> Path:
        """Start the cluster, unless the containers of its last complete start are running, for as many nodes.

        Raises:
            ToolMissing: a program has to be built and Go is missing, or there is no container engine.
            ClusterError: it does not come up; what is wrong with the machine is said first, where it is known.
        """
        tools = ensure(PROGRAMS, self._say)
        with self._alone():
            if self.is_running(nodes):
                self._say("the cluster is running already")
            else:
                self._make(tools, nodes)
        for image in images:
            self._say(f"loading the image {image.name}")
            self.load(image)
        return self.kubeconfig

    def prepare(self) -> None:
        """Build the programs and the node image that are missing, without a cluster."""
        ensure(PROGRAMS, self._say)
        if self.engine.folder is not None:
            with self._alone():
                node_image.ensure(self.engine, ensure(node_image.PROGRAMS, self._say), self._say)
                self.engine.release()

    def is_running(self, nodes: Sequence[NodeSpec]) -> bool:
        if not self._record.exists():
            return False
        record: dict[str, str] = json.loads(self._record.read_text(encoding="utf-8"))
        there = {container.id: container.started for container in self._containers() if container.running}
        return there == record and len(record) == len(nodes) + 1

    def _make(self, tools: Tools, nodes: Sequence[NodeSpec]) -> None:
        self._delete()
        if foreign := [container.name for container in self.engine.containers(self.name)]:
            raise ClusterError(
                f"{', '.join(foreign)}: a cluster of this name was made by another program, and is left alone: "
                f"kind delete cluster --name={self.name}"
            )
        image = None
        if self.engine.folder is not None:
            image = node_image.ensure(self.engine, ensure(node_image.PROGRAMS, self._say), self._say)
        self.volumes.mkdir(parents=True)
        self.audit.path.parent.mkdir(parents=True)
        machine.prepare_folders(self.folder / "folders.json", () if image is None else (engine.MODULES,))
        try:
            self._start(tools, nodes, image)
        except BaseException as error:
            logs = self.logs()
            self._say("the cluster did not start and is removed. The last lines of each node's log:")
            for name, text in logs.items():
                self._say(f"--- {name}\n{text}")
            self._delete()
            if isinstance(error, ClusterError) and (sentence := explain("\n".join([str(error), *logs.values()]))):
                raise ClusterError(f"{sentence}\n{error}") from error
            raise
        started = {container.id: container.started for container in self._containers()}
        self._record.write_text(json.dumps(started), encoding="utf-8")

    def _start(self, tools: Tools, nodes: Sequence[NodeSpec], image: str | None) -> None:
        policy = self.audit.path.parent / "audit-policy.json"
        policy.write_text(json.dumps(commands.AUDIT_POLICY), encoding="utf-8")
        written = settings.configuration(
            self.name, nodes, policy.parent, self.volumes, self._pods, own_dns=image is not None
        )
        fetched = "" if image else "; the first time it fetches its node image"
        self._say(f"kind makes the cluster of {len(nodes) + 1} containers{fetched}")
        self.engine.weigh(len(nodes) + 1)
        create = settings.create_command(tools, self.name, self.kubeconfig, image)
        self._kind(create, text=json.dumps(written), bound=image is not None)
        if not self.audit.path.exists():
            raise ClusterError(
                "no audit log is written, so kind ignored the settings of kubeadm: it writes another version "
                f"of kubeadm's API than {' or '.join(settings.LISTED)}, which this project has patches for"
            )
        self._kind(settings.load_command(tools, self.name, infrastructure(tools, INFRASTRUCTURE)))
        names = settings.worker_names(self.name, len(nodes))
        named = [NodeSpec(name, node.devices) for name, node in zip(names, nodes, strict=True)]
        addons.add_devices(self.kubectl, named)
        manifests = [addons.kuberay(self.kubectl, tools.kuberay)]
        if image is not None:
            manifests.insert(0, addons.coredns(settings.DNS))
            self._add_routes()
        self._say("nodes are Ready; waiting for CoreDNS and KubeRay")
        addons.apply(self.kubectl, manifests)
        addons.await_available(self.kubectl, addons.DEPLOYMENTS)

    def _add_routes(self) -> None:
        """Add routes from this machine to the pods, as bare clusters have; they vanish with the cluster's bridge."""
        with self.api("e2e-routes") as api:
            nodes = api.get("/api/v1/nodes")["items"]
        for node in nodes:
            (address,) = (item["address"] for item in node["status"]["addresses"] if item["type"] == "InternalIP")
            run(["ip", "route", "add", node["spec"]["podCIDR"], "via", address])

    def kubectl(self, *arguments: str, text: str | None = None, deadline: float = deadlines.COMMAND) -> str:
        program = ensure((KUBE,), self._say).program("kubectl")
        return run([program, f"--kubeconfig={self.kubeconfig}", *arguments], text=text, deadline=deadline)

    def api(self, user_agent: str = "e2e") -> Api:
        written = YAML(typ="safe").load(self.kubeconfig.read_text(encoding="utf-8"))
        cluster = written["clusters"][0]["cluster"]
        user = written["users"][0]["user"]

        def kept(place: Mapping[str, str], name: str) -> Path:
            path = self.folder / name
            path.write_bytes(base64.b64decode(place[f"{name}-data"]))
            return path

        authority = kept(cluster, "certificate-authority")
        certificate = kept(user, "client-certificate")
        key = kept(user, "client-key")
        return Api(cluster["server"], authority, certificate, key, user_agent)

    def await_account(self, namespace: str) -> None:
        with self.api("e2e-wait") as api:
            path = f"/api/v1/namespaces/{namespace}/serviceaccounts"
            deadlines.wait_until(
                f"the account of {namespace}", deadlines.API_READY, lambda: bool(api.get(path)["items"])
            )

    def load(self, image: NodeImage) -> None:
        if not isinstance(image, LayeredImage):
            self._kind(settings.load_command(ensure((KIND,), self._say), self.name, [image]))
            return
        if self.engine.folder is None:
            raise ClusterError(f"kind takes archives, and {image.name} is in buildah's storage: build it with Docker")
        for node in self._workers():
            take(self.engine.command("exec", node.id, *CTR), image, self.volumes, node.outside)

    def tag(self, image: str, name: str) -> None:
        for node in self._workers():
            self.engine.inside(node.id, *CTR, "images", "tag", "--force", image, name)

    def nodes(self) -> list[str]:
        if not self.folder.exists():
            return []
        return [node.name for node in self._workers()]

    def run_in(self, node: str, *command: str) -> str:
        if node not in (names := self.nodes()):
            known = f"the nodes are {', '.join(names)}" if names else "the cluster is not running: make cluster"
            raise ClusterError(f"no node {node}: {known}")
        return self.engine.inside(node, *command)

    def cut(self, node: str) -> None:
        for command in settings.cut_commands(cut=True):
            self.run_in(node, *command)

    def restore(self, node: str) -> None:
        for command in settings.cut_commands(cut=False):
            self.run_in(node, *command)

    def logs(self) -> dict[str, str]:
        """The last lines of each node's services; of a node that has ended, of its container."""
        output = {}
        for node in self._containers():
            try:
                output[node.name] = self.engine.inside(node.id, "journalctl", "--no-pager", "--lines=30")
            except CommandFailed:
                output[node.name] = self.engine.run("logs", "--tail=30", node.id)
        return output

    def delete(self) -> None:
        # Without the folder nothing was begun, and no container engine is looked for.
        if self.folder.exists():
            with self._alone():
                self._delete()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One start or end of a cluster of this engine at a time."""
        folder = self.engine.folder or self._base
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder, self._say, "start or end of a cluster"):
            yield

    def _delete(self) -> None:
        self.engine.remove(self._containers(), self.name)
        record = self.folder / "folders.json"
        machine.give_back_folders(record, [path for path in self._base.glob("*/folders.json") if path != record])
        self.engine.release()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _kind(self, command: Sequence[str], *, text: str | None = None, bound: bool = False) -> str:
        prefix = [*self.engine.environment(self.name), *(BOUND if bound else ())]
        return run([*prefix, *command], text=text, deadline=deadlines.IMPORT_IMAGE)

    def _containers(self) -> list[Container]:
        """The containers of this cluster, running or not, also of a start that was killed."""
        return [container for container in self.engine.containers(self.name) if container.belongs(self.folder)]

    def _workers(self) -> list[Container]:
        """Nodes that run pods, in their order."""
        workers = [container for container in self._containers() if "-worker" in container.name]
        return sorted(workers, key=lambda node: (len(node.name), node.name))
