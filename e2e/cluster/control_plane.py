"""A control plane without machines: etcd, API server, controllers, scheduler, and kwok for nodes and pods.

Needs no root. Everything is in one temporary folder, listens on the loopback interface, and ends with the thread that
started it.
"""

import json
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from . import commands, deadlines, pki
from .api import Api
from .audit import AuditLog
from .errors import ToolMissing
from .fake_nodes import fake_node, is_ready
from .ports import free_ports
from .processes import Daemons, Identity, identify, run, runs
from .tools import KUBE, KWOK, Say, Tools, ensure

PREFIX = "omni-control-plane-"
TOKEN_LIFE_S = 4 * 3600


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """A running control plane.

    `kubeconfig` has administrator rights; `audit` counts the calls of any client.
    """

    layout: commands.Layout
    authority: pki.Authority
    daemons: Daemons

    @property
    def kubeconfig(self) -> Path:
        return self.authority.kubeconfig(pki.ADMIN, self.layout.server)

    @property
    def audit(self) -> AuditLog:
        return AuditLog(self.layout.audit_log)

    def kubeconfig_of(self, user: str, group: str | None = None) -> Path:
        """A kubeconfig of another user, who may do what roles allow; a name of 64 bytes at most."""
        name = "user-" + "".join(letter if letter.isalnum() else "-" for letter in user)
        return self.authority.kubeconfig(pki.Subject(name, user, group), self.layout.server)

    def kubeconfig_of_account(self, namespace: str, account: str) -> Path:
        """A kubeconfig with a fresh token of a service account, as its pods have it."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        with self.api("e2e-token") as api:
            token = api.post(path, {"spec": {"expirationSeconds": TOKEN_LIFE_S}})["status"]["token"]
        return self.authority.kubeconfig_with_token(f"account-{namespace}-{account}", token, self.layout.server)

    def api(self, user_agent: str = "e2e") -> Api:
        """An administrator's client; its user agent tells its calls apart in the audit log."""
        certificate, key = self.authority.issue(pki.ADMIN)
        return Api(self.layout.server, self.authority.certificate, certificate, key, user_agent)

    def kubectl(self, *arguments: str, text: str | None = None, deadline: float = deadlines.COMMAND) -> str:
        """What kubectl prints.

        Raises:
            CommandFailed: kubectl failed.
        """
        program = self.layout.tools.program("kubectl")
        return run([program, f"--kubeconfig={self.kubeconfig}", *arguments], text=text, deadline=deadline)

    def await_account(self, namespace: str) -> None:
        """Pods and tokens are refused until a controller has made the namespace's account: wait for that.

        Raises:
            ProcessEnded: a daemon ended meanwhile.
        """
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts"
        with self.api("e2e-wait") as api:

            def made() -> bool:
                self.daemons.check()
                return bool(api.get(path)["items"])

            deadlines.wait_until(f"the account of the namespace {namespace}", deadlines.API_READY, made)

    def add_fake_nodes(self, nodes: Mapping[str, Mapping[str, int]]) -> None:
        """Make nodes by name with their devices, and wait until kwok says that they are Ready."""
        with self.api("e2e-nodes") as api:
            for name, devices in nodes.items():
                api.post("/api/v1/nodes", fake_node(name, devices))

            def ready() -> bool:
                self.daemons.check()
                ready_nodes = {item["metadata"]["name"] for item in api.get("/api/v1/nodes")["items"] if is_ready(item)}
                return set(nodes) <= ready_nodes

            deadlines.wait_until(f"nodes {sorted(nodes)} to be Ready", deadlines.NODES_READY, ready)


def start(layout: commands.Layout, daemons: Daemons, programs: Mapping[str, list[str]]) -> ControlPlane:
    """Start etcd and the API server, then, when that is ready, `programs` by name.

    Raises:
        ProcessEnded: one of them ended; the message has the last lines of its log.
        DeadlinePassed: the API server does not become ready.
    """
    authority = pki.Authority(layout.pki)
    first_service = layout.services.rpartition(".")[0] + ".1"
    authority.issue(pki.api_server(["127.0.0.1", layout.address, first_service]))
    authority.issue(pki.ACCOUNTS)
    for subject in (pki.ADMIN, pki.CONTROLLER_MANAGER, pki.SCHEDULER):
        authority.kubeconfig(subject, layout.server)
    layout.audit_policy.write_text(json.dumps(commands.AUDIT_POLICY), encoding="utf-8")
    daemons.start("etcd", commands.etcd(layout))
    daemons.start("kube-apiserver", commands.api_server(layout))
    plane = ControlPlane(layout, authority, daemons)
    with plane.api("e2e-start") as api:
        deadlines.wait_until("the API server", deadlines.API_READY, lambda: checked(daemons, api.ready))
        for name, command in programs.items():
            daemons.start(name, command)
    plane.await_account("default")
    return plane


def checked(daemons: Daemons, probe: Callable[[], bool]) -> bool:
    """The probe's answer, after a look whether every daemon still runs."""
    daemons.check()
    return probe()


def layout_of(folder: Path, tools: Tools, chance: random.Random, api_flags: tuple[str, ...] = ()) -> commands.Layout:
    """A control plane on free ports of the loopback."""
    api, etcd, peer, manager, scheduler = free_ports(5, chance)
    return commands.Layout(
        folder=folder,
        tools=tools,
        address="127.0.0.1",
        api_port=api,
        etcd_port=etcd,
        etcd_peer_port=peer,
        manager_port=manager,
        scheduler_port=scheduler,
        api_flags=api_flags,
    )


def sweep(parent: Path) -> list[Path]:
    """Remove the folders of control planes whose owner was killed; their processes ended with it."""
    removed = []
    for folder in parent.glob(f"{PREFIX}*"):
        owner = folder / "owner.json"
        if owner.exists() and not runs(Identity(**json.loads(owner.read_text(encoding="utf-8")))):
            shutil.rmtree(folder, ignore_errors=True)
            removed.append(folder)
    return removed


@contextmanager
def control_plane(
    nodes: Mapping[str, Mapping[str, int]] | None = None,
    *,
    say: Say = print,
    parent: Path | None = None,
    api_flags: tuple[str, ...] = (),
) -> Iterator[ControlPlane]:
    """A control plane with these fake nodes and their devices; at the end no process and no file is left.

    Args:
        nodes: devices by node, for example `{"gpu-0": {"nvidia.com/gpu": 8}}`.
        parent: where its folder is made; the system's temporary folder if not given.
        api_flags: more flags of the API server.

    Raises:
        ToolMissing: this is not Linux, or the programs are not built and there is no Go to build them.
        ProcessEnded: a daemon ended while it started.
    """
    owner = identify("owner", os.getpid())
    if owner is None:
        raise ToolMissing("there is no /proc here: a control plane for tests needs Linux")
    tools = ensure((KUBE, KWOK), say)
    parent = parent or Path(tempfile.gettempdir())
    sweep(parent)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    daemons: Daemons | None = None
    try:
        (folder / "owner.json").write_text(json.dumps(asdict(owner)), encoding="utf-8")
        daemons = Daemons(folder, bound=True)
        layout = layout_of(folder, tools, random.Random(), api_flags)
        programs = {
            "kube-controller-manager": commands.controller_manager(layout),
            "kube-scheduler": commands.scheduler(layout),
            "kwok": commands.kwok(layout),
        }
        plane = start(layout, daemons, programs)
        plane.add_fake_nodes(nodes or {})
        yield plane
    finally:
        if daemons is not None:
            daemons.stop_all()
        shutil.rmtree(folder)
