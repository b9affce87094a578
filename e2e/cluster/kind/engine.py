"""Container engines that run kind's nodes: Docker where its daemon answers, else podman with separate storage."""

import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster import deadlines
from e2e.cluster.bare import machine
from e2e.cluster.errors import ClusterError, CommandFailed, ToolMissing
from e2e.cluster.processes import run
from e2e.cluster.tools import Say

LABEL = "io.x-k8s.kind.cluster"
# A program that shows that its Debian package is there.
PACKAGES = {
    "podman": "podman",
    "runc": "runc",
    "iptables": "iptables",
    "ip": "iproute2",
    # Nodes find each other by name only with these two.
    "/usr/lib/podman/netavark": "netavark",
    "/usr/lib/podman/aardvark-dns": "aardvark-dns",
}
ENDED_MEANWHILE = "container state improper"
# Mounted into nodes by kind.
MODULES = "/lib/modules"
CGROUP = "libpod_parent"
# Netavark's: a rule for each network that containers use, and leases, of all storages of podman on this machine.
FORWARDED = re.compile(r"^-A NETAVARK_FORWARD ", re.MULTILINE)
NETWORKS = Path("/run/containers/networks")
STORAGE = """[storage]
driver = "overlay"
graphroot = "{folder}/storage"
runroot = "{run}/storage"
[storage.options.overlay]
skip_mount_home = "true"
"""
# runtime: crun refuses cgroup v1 next to v2. default_ulimits: limits cannot be raised everywhere. pids_limit: the
# default of 2,048 threads is too few for two Ray pods. stop_timeout: `podman rm --force` waits this long for systemd
# before it kills a node. lock_type: locks in shared memory would be shared with the machine's other containers.
CONTAINERS = """[containers]
default_ulimits = []
pids_limit = 0
[engine]
runtime = "runc"
stop_timeout = 1
lock_type = "file"
tmp_dir = "{run}/libpod"
[network]
network_backend = "netavark"
network_config_dir = "{folder}/networks"
"""


@dataclass(frozen=True, slots=True)
class Container:
    """A container that is a node of a cluster.

    Attributes:
        started: when its processes started last, as the engine prints it.
        binds: folders of this machine that it has.
        volumes: names of its volumes.
        var: the folder of this machine that is its `/var`.
    """

    id: str
    name: str
    started: str
    running: bool
    binds: tuple[Path, ...]
    volumes: tuple[str, ...]
    var: Path | None

    def outside(self, path: Path) -> Path:
        """Where a path below the node's `/var` is on this machine: in podman's storage.

        Raises:
            ClusterError: the node has no such volume.
        """
        if self.var is None:
            raise ClusterError(f"the node {self.name} has no volume for /var")
        return self.var / path.relative_to("/var")

    def belongs(self, folder: Path) -> bool:
        """Whether it has a folder below `folder`: each node of a cluster has one of the cluster's folder."""
        return any(folder in bind.parents for bind in self.binds)


def parse(inspected: str) -> list[Container]:
    """Containers as `inspect` of Docker or podman describes them. PURE."""
    containers = []
    for item in json.loads(inspected):
        mounts = item.get("Mounts") or []
        var = [Path(mount["Source"]) for mount in mounts if mount["Destination"] == "/var"]
        containers.append(
            Container(
                id=item["Id"],
                name=item["Name"].lstrip("/"),
                started=item["State"]["StartedAt"],
                running=item["State"]["Running"],
                binds=tuple(Path(mount["Source"]) for mount in mounts if mount["Type"] == "bind"),
                volumes=tuple(mount["Name"] for mount in mounts if mount["Type"] == "volume"),
                var=var[0] if var else None,
            )
        )
    return containers


@dataclass(frozen=True, slots=True)
class Engine:
    """A container engine.

    Attributes:
        program: `docker` or `podman`.
        variables: environment variables for the program.
        folder: folder of podman's storage and settings; None: Docker.
    """

    program: str
    variables: Mapping[str, str]
    folder: Path | None = None

    def command(self, *arguments: str) -> list[str]:
        return [*self.environment(), self.program, *arguments]

    def environment(self, cluster: str | None = None) -> list[str]:
        """The beginning of a command: what kind needs to use this engine, and a network of the cluster's own."""
        variables = {"KIND_EXPERIMENTAL_PROVIDER": self.program, **self.variables}
        if cluster is not None:
            variables[f"KIND_EXPERIMENTAL_{self.program.upper()}_NETWORK"] = cluster
        return ["env", *(f"{name}={value}" for name, value in variables.items())]

    def run(self, *arguments: str, deadline: float = deadlines.COMMAND, text: str | None = None) -> str:
        """See `processes.run`."""
        return run(self.command(*arguments), deadline=deadline, text=text)

    def inside(self, node: str, *arguments: str) -> str:
        """Run a command in a node."""
        return self.run("exec", node, *arguments)

    def containers(self, cluster: str) -> list[Container]:
        """Nodes that have the label of a cluster, running or not."""
        listed = self.run("ps", "--all", "--quiet", "--no-trunc", f"--filter=label={LABEL}={cluster}").split()
        return parse(self.run("inspect", *listed)) if listed else []

    def remove(self, containers: Sequence[Container], network: str) -> None:
        """Remove containers by their IDs with their volumes, and a network, unless others use it."""
        if containers:
            ids = [container.id for container in containers]
            self._remove(ids)
        listed = set(self.run("volume", "ls", "--quiet").split())
        volumes = {name for container in containers for name in container.volumes}
        if self.folder is not None and not self.run("ps", "--all", "--quiet"):
            volumes = listed  # also one whose container was never made; the storage has only clusters
        if left := sorted(volumes & listed):
            self.run("volume", "rm", "--force", *left, deadline=deadlines.IMPORT_IMAGE)
        if network in self.run("network", "ls", "--format={{.Name}}").split():
            self.run("network", "rm", network)

    def _remove(self, ids: Sequence[str]) -> None:
        command = ("rm", "--force", "--volumes")
        try:
            self.run(*command, *ids, deadline=deadlines.IMPORT_IMAGE)
        except CommandFailed as error:
            # podman refuses a node that ends in the moment in which it is killed, and removes it the next time.
            if ENDED_MEANWHILE not in str(error):
                raise
            self.run(*command, "--ignore", *ids, deadline=deadlines.IMPORT_IMAGE)

    def weigh(self, nodes: int) -> None:
        """Give this many more podman nodes the CPU shares that they report, as bare clusters do."""
        if self.folder is not None:
            nodes += len(self.run("ps", "--quiet").split())
            for hierarchy in machine.hierarchies():
                if (hierarchy / "cpu.shares").exists():
                    (hierarchy / CGROUP).mkdir(exist_ok=True)
                machine.weigh(hierarchy / CGROUP, nodes)

    def release(self) -> None:
        """Give back what podman keeps of the machine besides its storage, if no container is left in it."""
        if self.folder is None or self.run("ps", "--all", "--quiet"):
            return
        for hierarchy in machine.hierarchies():
            for group in (hierarchy / CGROUP / "conmon", hierarchy / CGROUP):
                with suppress(OSError):  # there is none, or podman has other containers
                    group.rmdir()
        shutil.rmtree(run_folder(self.folder), ignore_errors=True)
        for family in ("iptables", "ip6tables"):
            saved = run([f"{family}-save"])
            if FORWARDED.search(saved):
                return  # podman has other networks
            run([f"{family}-restore", "--noflush"], text=removal(saved))
        shutil.rmtree(NETWORKS, ignore_errors=True)
        with suppress(OSError):
            NETWORKS.parent.rmdir()


def removal(saved: str) -> str:
    """What `iptables-restore` reads to remove the chains that netavark makes once, from `iptables-save`. PURE."""
    tables: dict[str, list[str]] = {}
    chains: list[str] = []
    for line in saved.splitlines():
        if line.startswith("*"):
            chains = tables.setdefault(line, [])
        elif line.startswith("-A") and "NETAVARK" in line:
            chains.insert(0, line.replace("-A", "-D", 1))
        elif line.startswith(":NETAVARK"):
            chains.append(f"-X {line.split()[0][1:]}")
    return "".join("\n".join([table, *lines, "COMMIT", ""]) for table, lines in tables.items() if lines)


def docker_answers() -> bool:
    """Whether there is a Docker client whose daemon answers."""
    return _answers(["docker", "info"])


def _answers(command: Sequence[str]) -> bool:
    if shutil.which(command[0]) is None:
        return False
    try:
        done = subprocess.run(command, capture_output=True, timeout=deadlines.COMMAND, check=False)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def run_folder(folder: Path) -> Path:
    """Where podman keeps what does not outlive a reboot, for its storage below `folder`."""
    return Path("/run") / f"omni-operator-{hashlib.sha256(str(folder).encode()).hexdigest()[:8]}"


def podman(folder: Path, say: Say) -> Engine:
    """Podman with storage and settings in `folder`; the machine's podman storage and settings stay untouched.

    Raises:
        ToolMissing: no root, or packages that cannot be installed.
        ClusterError: podman does not work on this machine.
    """
    if os.geteuid() != 0:
        raise ToolMissing("kind needs Docker, whose daemon does not answer here, or root and podman")
    machine.install_packages(say, PACKAGES)
    folder.mkdir(parents=True, exist_ok=True)
    variables = {"CONTAINERS_CONF": "containers.conf", "CONTAINERS_STORAGE_CONF": "storage.conf"}
    for name, text in (("containers.conf", CONTAINERS), ("storage.conf", STORAGE)):
        (folder / name).write_text(text.format(folder=folder, run=run_folder(folder)), encoding="utf-8")
    engine = Engine("podman", {name: str(folder / file) for name, file in variables.items()}, folder)
    try:
        engine.run("info")
    except ClusterError as error:
        raise ClusterError(f"podman does not work here: {error}") from error
    return engine


def choose(base: Path, say: Say) -> Engine:
    """Docker where it answers, else podman with its storage below `base`.

    Raises:
        ToolMissing: there is neither.
    """
    return Engine("docker", {}) if docker_answers() else podman(base / "podman", say)
