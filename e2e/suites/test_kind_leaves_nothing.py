"""A removed cluster of kind leaves nothing on the machine, whatever happened to it, and touches nothing of others."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster import deadlines
from e2e.cluster.bare import machine
from e2e.cluster.errors import ClusterError, CommandFailed, ToolMissing
from e2e.cluster.kind import engine, node_image
from e2e.cluster.kind.provider import KindCluster
from e2e.cluster.provider import NodeSpec
from e2e.cluster_checks import processes_naming
from e2e.conftest import ROOT, leave_out

pytestmark = [pytest.mark.bare, pytest.mark.about("e2e/cluster/kind"), pytest.mark.timeout(1800)]

START = "from e2e.cluster.kind.provider import KindCluster; KindCluster(instance={}).create(())"


def traces(cluster: KindCluster) -> dict[str, set[str]]:
    """Everything on this machine that clusters of kind make, besides the node image."""
    podman = cluster.engine
    assert podman.folder is not None
    run_folder = engine.run_folder(podman.folder)
    places = (str(podman.folder), str(run_folder))

    def lines(*command: str) -> set[str]:
        done = subprocess.run(command, capture_output=True, text=True, timeout=deadlines.COMMAND, check=True)
        return set(done.stdout.splitlines())

    left = {
        "processes": processes_naming(*places),
        "mounts": {
            line.split()[4]
            for line in machine.MOUNTS.read_text().splitlines()
            if line.split()[4].startswith((*places, str(machine.NETNS)))
        },
        "cgroups": {
            str(path) for hierarchy in machine.hierarchies() for path in hierarchy.glob("libpod*") if path.is_dir()
        },
        "folders": {
            path
            for path in (engine.MODULES, str(machine.NETNS), str(engine.NETWORKS), str(run_folder), str(cluster.folder))
            if Path(path).exists()
        },
        "rules": {
            line for family in ("iptables", "ip6tables") for line in lines(f"{family}-save") if "NETAVARK" in line
        },
        "routes": {line for line in lines("ip", "route") if "podman" in line},
        "links": {line.split(": ")[1] for line in lines("ip", "-oneline", "link") if "podman" in line},
        "containers": set(podman.run("ps", "--all", "--quiet").split()),
        "volumes": set(podman.run("volume", "ls", "--quiet").split()),
        "networks": set(podman.run("network", "ls", "--format={{.Name}}").split()),
    }
    podman.release()
    return left


@pytest.fixture
def first() -> Iterator[KindCluster]:
    """A cluster without workers."""
    yield from made(2)


@pytest.fixture
def second() -> Iterator[KindCluster]:
    """Another one."""
    yield from made(3)


def made(instance: int) -> Iterator[KindCluster]:
    cluster = KindCluster(instance=instance)
    try:
        cluster.prepare()
    except ToolMissing as error:
        leave_out(error)
    if cluster.engine.folder is None:
        pytest.skip("left out: this is about podman, and Docker answers here")
    cluster.delete()
    yield cluster
    cluster.delete()


def test_a_removed_cluster_leaves_nothing_and_its_neighbour_keeps_running(
    first: KindCluster, second: KindCluster
) -> None:
    before = traces(first)
    first.create(())
    second.create(())
    neighbour = second.engine.containers(second.name)
    assert len(neighbour) == len(first.engine.containers(first.name)) == 1
    standing = traces(first)
    assert all(standing[kind] for kind in ("processes", "mounts", "cgroups", "folders", "routes", "volumes"))
    assert {first.name, second.name} <= standing["networks"]
    first.delete()
    assert first.engine.containers(first.name) == []
    assert second.engine.containers(second.name) == neighbour
    assert second.kubectl("get", "--raw=/readyz") == "ok"
    assert len(traces(second)["volumes"]) == 1
    second.delete()
    assert traces(first) == before
    second.delete()


def test_a_start_that_was_killed_is_removed_by_the_next(first: KindCluster) -> None:
    before = traces(first)
    command = [sys.executable, "-c", START.format(2)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as starting:
        try:
            deadlines.wait_until("a node", deadlines.NODES_READY, lambda: bool(first.engine.containers(first.name)))
        finally:
            starting.send_signal(signal.SIGKILL)
    (half,) = first.engine.containers(first.name)
    first.create(())
    (complete,) = first.engine.containers(first.name)
    assert complete.id != half.id
    assert first.kubectl("get", "--raw=/readyz") == "ok"
    first.delete()
    assert traces(first) == before


def test_a_node_that_was_started_again_is_replaced_and_a_running_cluster_is_not(first: KindCluster) -> None:
    """Its ID is the same, and its start time is not."""
    first.create(())
    (node,) = first.engine.containers(first.name)
    first.create(())
    assert first.engine.containers(first.name) == [node]
    first.engine.run("restart", node.id)
    first.create(())
    assert node.id not in {container.id for container in first.engine.containers(first.name)}


def test_a_cluster_of_another_program_with_the_same_name_is_left_alone(first: KindCluster) -> None:
    podman = first.engine
    label = f"--label={engine.LABEL}={first.name}"
    command = ["run", "--detach", "--network=none", label, "--entrypoint=sleep", node_image.name(), "600"]
    foreign = podman.run(*command).strip()
    try:
        with pytest.raises(ClusterError, match="made by another program"):
            first.create(())
        first.folder.mkdir(exist_ok=True)
        first.delete()
        assert [container.id for container in podman.containers(first.name) if container.running] == [foreign]
    finally:
        podman.run("rm", "--force", foreign)
        podman.release()


def test_a_start_that_fails_leaves_nothing(first: KindCluster) -> None:
    """The API server refuses the devices when all nodes are running."""
    before = traces(first)
    with pytest.raises(CommandFailed, match="must be greater than or equal to 0"):
        first.create((NodeSpec("only", {"example.com/card": -1}),))
    assert traces(first) == before
