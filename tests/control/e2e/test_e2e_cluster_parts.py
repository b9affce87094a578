"""Pure parts of whole clusters: command lines, settings, images; without a cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.__main__ import chosen, main
from e2e.cluster.bare import machine
from e2e.cluster.bare.network import Network, collisions
from e2e.cluster.bare.provider import BareCluster
from e2e.cluster.errors import ClusterError
from e2e.cluster.kind.provider import KindCluster
from e2e.cluster.provider import NODES


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
