"""Pure parts of whole clusters: command lines, settings, images; without a cluster."""

from __future__ import annotations

import json
import os
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from e2e.cluster.__main__ import chosen, main
from e2e.cluster.bare import machine
from e2e.cluster.bare.network import Network, collisions, links_down, links_up
from e2e.cluster.bare.provider import BareCluster
from e2e.cluster.errors import ClusterError
from e2e.cluster.kind.provider import KindCluster
from e2e.cluster.provider import NODES

instances = st.integers(0, 15)


@given(instances, instances)
def test_clusters_side_by_side_share_no_address_and_no_name(one: int, other: int) -> None:
    first = Network(one)
    second = Network(other)
    shared = any(IPv4Network(a).overlaps(IPv4Network(b)) for a in first.ranges for b in second.ranges)
    assert shared is (one == other)
    assert (first.bridge == second.bridge) is (one == other)


@given(st.lists(st.sampled_from(["a", "b", "c", "d"]), unique=True, min_size=1))
def test_every_created_link_is_removed(names: list[str]) -> None:
    network = Network(3)
    made = links_up(network, names)
    links = [line[line.index("add") + 1] for line in made if line[:3] == ["ip", "link", "add"]]
    namespaces = [line[3] for line in made if line[:3] == ["ip", "netns", "add"]]
    assert len(links) == len(names) + 1
    assert len(namespaces) == len(names)
    removed = links_down(network, ["eth0", "docker0", "omni30", *links], ["other", "omni30-a", *namespaces])
    gone = [line[3] for line in removed if line[:3] == ["ip", "link", "del"]]
    assert sorted(gone) == sorted(links)
    assert sorted(line[3] for line in removed if line[:3] == ["ip", "netns", "del"]) == sorted(namespaces)
    assert links_down(network, ["eth0"], ["other"]) == []


@pytest.mark.parametrize(
    ("routes", "found"),
    [
        ([{"dst": "default"}, {"dst": "192.168.0.0/16", "dev": "eth0"}], []),
        ([{"dst": "10.0.0.0/8", "dev": "vpn0"}], ["10.0.0.0/8"]),
        ([{"dst": "10.232.0.10", "dev": "vpn0"}], ["10.232.0.10"]),
        ([{"dst": "10.200.0.0/24", "dev": "omni0"}], []),
        ([{"dst": "unreachable"}, {}], []),
    ],
)
def test_addresses_in_use_are_found(routes: list[dict[str, Any]], found: list[str]) -> None:
    assert collisions(Network(), routes) == found


def test_cgroups_v1_and_v2_are_distinguished(tmp_path: Path) -> None:
    first = tmp_path / "one"
    for name in ("cpu,cpuacct", "cpuset", "unified"):
        (first / name).mkdir(parents=True)
        (first / name / "cgroup.procs").touch()
    (first / "cpu").symlink_to("cpu,cpuacct")
    assert [path.name for path in machine.hierarchies(first)] == ["cpu,cpuacct", "cpuset", "unified"]
    for file, text in (("cpuset.cpus", "0-1"), ("cpuset.mems", "0")):
        (first / "cpuset" / file).write_text(text)
    machine.make_cgroup("omni0-a", first)
    assert (first / "cpuset" / "omni0-a" / "cpuset.cpus").read_text() == "0-1"
    assert sorted(path.parent.name for path in first.glob("*/omni0-a")) == ["cpu", "cpu,cpuacct", "cpuset", "unified"]
    second = tmp_path / "two"
    second.mkdir()
    (second / "cgroup.controllers").write_text("cpu memory pids\n")
    machine.make_cgroup("omni0-a", second)
    assert (second / "cgroup.subtree_control").read_text() == "+cpu +memory +pids"
    machine.remove_cgroups("omni0-", second)
    assert not (second / "omni0-a").exists()


@pytest.mark.parametrize(("version", "file", "one"), [(1, "cpu.shares", 1024), (2, "cpu.weight", 100)])
def test_a_node_has_the_cpu_weight_of_its_cpus(tmp_path: Path, version: int, file: str, one: int) -> None:
    """Otherwise all pods of a node together get the CPU share of one process."""
    root = tmp_path if version == 2 else tmp_path / "one"
    hierarchy = root if version == 2 else root / "cpu"
    (hierarchy / "omni0-a").mkdir(parents=True)
    if version == 2:
        (root / "cgroup.controllers").write_text("cpu\n")
    (hierarchy / "cgroup.procs").touch()
    # The kernel makes the file with the group.
    (hierarchy / "omni0-a" / file).write_text(str(one))
    machine.make_cgroup("omni0-a", root)
    assert (hierarchy / "omni0-a" / file).read_text() == str(one * (os.cpu_count() or 1))


def test_folders_that_existed_before_or_are_in_use_stay(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    used = tmp_path / "used"
    absent = tmp_path / "absent"
    empty.mkdir()
    (used / "inside").mkdir(parents=True)
    record = tmp_path / "folders.json"
    record.write_text(json.dumps([str(empty), str(used), str(absent)]))
    machine.give_back_folders(record)
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["folders.json", "used"]
    machine.give_back_folders(tmp_path / "no-record")


def test_another_cluster_inherits_the_folders_to_remove(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    folder.mkdir()
    own = tmp_path / "own.json"
    heir = tmp_path / "heir.json"
    own.write_text(json.dumps([str(folder)]))
    heir.write_text(json.dumps([str(tmp_path / "absent")]))
    machine.give_back_folders(own, [heir])
    assert folder.exists()
    machine.give_back_folders(heir)
    assert not folder.exists()


def test_a_folder_too_long_for_sockets_is_refused() -> None:
    machine.refuse_long(Path("/short"))
    with pytest.raises(ClusterError, match="set XDG_CACHE_HOME to a shorter one"):
        machine.refuse_long(Path("/long" * 20))


def test_both_providers_can_be_chosen_and_another_name_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, provider in (("kind", KindCluster), ("bare", BareCluster)):
        monkeypatch.setenv("OMNI_CLUSTER", name)
        assert isinstance(chosen(print), provider)
    monkeypatch.setenv("OMNI_CLUSTER", "knid")
    assert main(["up"]) == 1
    assert "OMNI_CLUSTER=knid: no cluster of this type; it may say bare or kind" in capsys.readouterr().out


def test_a_cluster_that_is_not_running_is_reported(tmp_path: Path) -> None:
    cluster = BareCluster(folder=tmp_path)
    assert cluster.nodes() == []
    assert not cluster.is_running(NODES)
    with pytest.raises(ClusterError, match="the cluster is not running: make cluster"):
        cluster.plane()
    with pytest.raises(ClusterError, match="no node a: the cluster is not running"):
        cluster.cut("a")
    assert list(tmp_path.iterdir()) == []
