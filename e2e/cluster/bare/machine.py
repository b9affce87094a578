"""Resources of the machine that a bare cluster needs, and their release: packages, rights, folders, cgroups."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from e2e.cluster import deadlines
from e2e.cluster.errors import ClusterError, ToolMissing
from e2e.cluster.processes import Identity, identify, run, search_path
from e2e.cluster.tools import Say

# A program that shows that its Debian package is there.
PACKAGES = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
}
# A node puts private folders over these; they have to exist on the machine.
MOUNT_POINTS = ("/var/lib/kubelet", "/var/lib/cni", "/var/log/containers", "/run/containerd")
CGROUPS = Path("/sys/fs/cgroup")
NETNS = Path("/run/netns")
MOUNTS = Path("/proc/self/mountinfo")


def absent(packages: Mapping[str, str]) -> list[str]:
    """Debian packages whose programs are not here."""
    path = search_path(os.environ.get("PATH", os.defpath))
    return sorted({package for program, package in packages.items() if shutil.which(program, path=path) is None})


def install_packages(say: Say, needed: Mapping[str, str] = PACKAGES) -> None:
    """Install missing packages by apt-get.

    Args:
        needed: packages by a program of each.

    Raises:
        ToolMissing: this is not Debian or not root; the message names the packages.
    """
    if os.geteuid() != 0:
        raise ToolMissing("a cluster of network namespaces needs root: start it as root, or use kind with Docker")
    packages = absent(needed)
    if not packages:
        return
    if shutil.which("apt-get") is None:
        raise ToolMissing(f"missing, and there is no apt-get to install them: {', '.join(packages)}")
    say(f"installing Debian's packages {', '.join(packages)}")
    command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages]
    for step in (["apt-get", "update", "-qq"], command):
        done = subprocess.run(
            step,
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=deadlines.INSTALL_PACKAGES,
            check=False,
        )
        if done.returncode != 0:
            raise ToolMissing(f"{' '.join(step)} ended with {done.returncode}:\n{done.stderr.strip()[-1000:]}")


def inside(namespaces: Iterable[str]) -> list[Identity]:
    """The processes in these network namespaces; the first process of a node is one of them."""
    pids = [int(pid) for name in namespaces for pid in run(["ip", "netns", "pids", name]).split()]
    return [identity for pid in pids if (identity := identify(f"process {pid}", pid)) is not None]


def prepare_folders(record: Path, mount_points: Iterable[str] = MOUNT_POINTS) -> None:
    """Make the mount points that nodes need and write down which were not there before."""
    points = tuple(mount_points)
    missing = [path for path in (*points, str(NETNS)) if not Path(path).exists()]
    record.write_text(json.dumps(missing), encoding="utf-8")
    for path in points:
        Path(path).mkdir(parents=True, exist_ok=True)


def give_back_folders(record: Path, others: Iterable[Path] = ()) -> None:
    """Remove what `prepare_folders` made, as far as it is empty; others may have begun to use it.

    Nodes of another cluster mount over the same folders, and would lose those mounts: its record, one of `others`,
    inherits the duty.
    """
    folders = json.loads(record.read_text(encoding="utf-8")) if record.exists() else []
    for heir in others:
        inherited = {*json.loads(heir.read_text(encoding="utf-8")), *folders}
        heir.write_text(json.dumps(sorted(inherited)), encoding="utf-8")
        return
    for path in map(Path, folders):
        if not path.is_dir() or any(path.iterdir()):
            continue
        # `ip netns` mounts its folder on itself, which only the list of mounts tells.
        for _ in range(mounted(path, MOUNTS.read_text(encoding="utf-8"))):
            run(["umount", str(path)])
        path.rmdir()


def mounted(path: Path, mountinfo: str) -> int:
    """Number of mounts stacked on `path`."""
    return sum(line.split()[4] == str(path) for line in mountinfo.splitlines())


def hierarchies(root: Path = CGROUPS) -> list[Path]:
    """The cgroup hierarchies in which a node gets a group: one of version 2, or each controller of version 1."""
    if (root / "cgroup.controllers").exists():
        return [root]
    return sorted(path for path in root.iterdir() if not path.is_symlink() and (path / "cgroup.procs").exists())


def make_cgroup(name: str, root: Path = CGROUPS) -> None:
    """A cgroup for a node's pods. Version 1 starts a cpuset empty: it gets all CPUs of the machine."""
    for hierarchy in hierarchies(root):
        if hierarchy == root:
            controllers = (root / "cgroup.controllers").read_text().split()
            (root / "cgroup.subtree_control").write_text(" ".join(f"+{controller}" for controller in controllers))
        (hierarchy / name).mkdir(exist_ok=True)
        weigh(hierarchy / name)
        if hierarchy.name.split(",")[0] == "cpuset":
            for file in ("cpuset.cpus", "cpuset.mems"):
                (hierarchy / name / file).write_text((hierarchy / file).read_text())


def weigh(group: Path, nodes: int = 1) -> None:
    """Let a group have as much of the CPUs as its nodes report. By default it weighs as much as one process."""
    for file, weight in (("cpu.shares", 1024), ("cpu.weight", 100)):
        if (group / file).exists():
            (group / file).write_text(str(weight * nodes * (os.cpu_count() or 1)))


def remove_cgroups(prefix: str, root: Path = CGROUPS) -> None:
    """Remove the groups of nodes, as soon as the last of their processes has ended.

    Raises:
        DeadlinePassed: a process stays in one of them.
    """
    groups = [path for hierarchy in hierarchies(root) for path in hierarchy.glob(f"{prefix}*") if path.is_dir()]

    def removed() -> bool:
        return all([remove_tree(group) for group in groups])  # noqa: C419 - each is tried at every visit

    deadlines.wait_until(f"cgroups {prefix}* to be empty", deadlines.PROCESS_END, removed)


def remove_tree(group: Path) -> bool:
    """Remove a cgroup and those below it; False where one is still in use."""
    if not group.exists():
        return True
    below = sorted((path for path in group.rglob("*") if path.is_dir()), key=lambda path: -len(path.parts))
    for path in [*below, group]:
        try:
            path.rmdir()
        except FileNotFoundError:
            continue
        except OSError:
            return False
    return True


def refuse_long(folder: Path) -> None:
    """Refuse a folder whose sockets would have paths of more than 107 characters.

    Raises:
        ClusterError: it would be too long.
    """
    limit = 60
    if len(str(folder)) > limit:
        raise ClusterError(f"the path {folder} is too long for sockets: set XDG_CACHE_HOME to a shorter one")
