"""A removed cluster leaves nothing on the machine, whatever happened to it."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster import deadlines
from e2e.cluster.api import ApiUnavailable
from e2e.cluster.bare import machine
from e2e.cluster.bare.network import links_up
from e2e.cluster.bare.provider import BareCluster
from e2e.cluster.errors import CommandFailed
from e2e.cluster.processes import identify, run, runs
from e2e.cluster.provider import NodeSpec
from e2e.cluster_checks import processes_naming

pytestmark = [pytest.mark.bare, pytest.mark.about("e2e/cluster/bare")]

ONE = (NodeSpec("only", {"example.com/card": 2}),)


def traces(cluster: BareCluster) -> dict[str, set[str]]:
    """Everything on this machine that has the cluster's name, or is in a place that clusters use."""
    name = cluster.network.bridge

    def lines(*command: str) -> set[str]:
        done = subprocess.run(command, capture_output=True, text=True, timeout=deadlines.COMMAND, check=True)
        return {line for line in done.stdout.splitlines() if name in line or str(cluster.folder) in line}

    groups = {str(path) for hierarchy in machine.hierarchies() for path in hierarchy.glob(f"{name}-*") if path.is_dir()}
    return {
        "processes": processes_naming(str(cluster.folder)),
        "links": lines("ip", "-oneline", "link"),
        "routes": lines("ip", "route"),
        "namespaces": lines("ip", "netns"),
        "mounts": lines("cat", "/proc/self/mountinfo"),
        "cgroups": groups,
        "files": {str(cluster.folder)} if cluster.folder.exists() else set(),
        "folders": {path for path in machine.MOUNT_POINTS if Path(path).exists()},
    }


@pytest.fixture
def second(bare: BareCluster) -> Iterator[BareCluster]:
    """A second cluster next to the running one."""
    cluster = BareCluster(instance=1)
    cluster.delete()
    yield cluster
    cluster.delete()


def test_a_removed_cluster_leaves_nothing_and_its_neighbour_keeps_running(
    bare: BareCluster, second: BareCluster
) -> None:
    before = traces(second)
    neighbour = bare.plane().daemons.recorded()
    second.create(ONE)
    identities = second.plane().daemons.recorded()
    standing = traces(second)
    assert all(standing[kind] for kind in ("processes", "links", "routes", "namespaces", "cgroups", "files"))
    second.delete()
    assert [item.name for item in identities if runs(item)] == []
    assert traces(second) == before
    assert all(runs(item) for item in neighbour)
    second.delete()


def test_a_cluster_that_lost_a_process_is_created_again(second: BareCluster) -> None:
    before = traces(second)
    second.create(ONE)
    assert second.is_running(ONE)
    second.plane().daemons.stop("kube-apiserver")
    assert not second.is_running(ONE)
    with second.plane().api() as api, pytest.raises(ApiUnavailable):
        api.get("/api/v1/nodes")
    second.create(ONE)
    assert second.is_running(ONE)
    second.delete()
    assert traces(second) == before


def test_a_node_without_a_record_is_ended(second: BareCluster) -> None:
    """As after a killed start: namespace and process exist, and no record of them."""
    before = traces(second)
    for command in links_up(second.network, ["lost"]):
        run(command)
    inside = ["nsenter", f"--net={machine.NETNS / second.network.namespace('lost')}", "sleep", "600"]
    lost = subprocess.Popen(inside)
    identity = identify("lost", lost.pid)
    assert identity is not None
    try:
        deadlines.wait_until(
            "it to be inside", deadlines.COMMAND, lambda: bool(machine.inside([second.network.namespace("lost")]))
        )
        second.delete()
        assert not runs(identity)
    finally:
        lost.kill()
        lost.wait()
    assert traces(second) == before


def test_a_start_that_fails_leaves_nothing(second: BareCluster) -> None:
    """The API server refuses the devices when all processes are running."""
    before = traces(second)
    with pytest.raises(CommandFailed, match="must be greater than or equal to 0"):
        second.create((NodeSpec("only", {"example.com/card": -1}),))
    assert traces(second) == before
