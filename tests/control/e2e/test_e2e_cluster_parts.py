"""Pure parts of whole clusters: command lines, settings, records of processes, folders; without a cluster."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.bare import machine
from e2e.cluster.bare.network import Network, collisions
from e2e.cluster.control_plane import sweep
from e2e.cluster.kind import engine
from e2e.cluster.processes import Daemons, identify


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
    record = tmp_path / "own.json"
    heir = tmp_path / "heir.json"
    record.write_text(json.dumps([str(folder)]))
    heir.write_text(json.dumps([str(tmp_path / "absent")]))
    machine.give_back_folders(record, [heir])
    assert folder.exists()
    machine.give_back_folders(heir)
    assert not folder.exists()


def test_a_stale_record_kills_no_process(tmp_path: Path) -> None:
    """If the PID now belongs to another process, that one is not killed."""
    daemons = Daemons(tmp_path, bound=True)
    stranger = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        identity = identify("old", stranger.pid)
        stale = {"name": "old", "pid": stranger.pid, "started": identity.started - 1, "boot": identity.boot}
        (tmp_path / "processes" / "old.json").write_text(json.dumps(stale))
        daemons.stop_all()
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.communicate()


def test_folders_of_killed_owners_are_swept_and_others_stay(tmp_path: Path) -> None:
    mine = identify("owner", os.getpid())
    for name, owner in {"alive": mine, "dead": replace(mine, boot="earlier")}.items():
        folder = tmp_path / f"omni-control-plane-{name}"
        folder.mkdir()
        content = {"name": owner.name, "pid": owner.pid, "started": owner.started, "boot": owner.boot}
        (folder / "owner.json").write_text(json.dumps(content))
    (tmp_path / "omni-control-plane-young").mkdir()
    assert [path.name for path in sweep(tmp_path)] == ["omni-control-plane-dead"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["omni-control-plane-alive", "omni-control-plane-young"]


def inspected(*binds: str) -> str:
    """A node as podman describes it."""
    mounts = [{"Type": "bind", "Source": bind, "Destination": "/x"} for bind in binds]
    volume = {"Type": "volume", "Name": "v1", "Source": "/s/volumes/v1/_data", "Destination": "/var"}
    state = {"StartedAt": "2026-01-01T00:00:00Z", "Running": True}
    return json.dumps([{"Id": "abc", "Name": "/some-worker", "State": state, "Mounts": [volume, *mounts]}])


def test_a_node_belongs_to_the_cluster_whose_folder_it_has() -> None:
    """Not to one of the same name, and not to a neighbour whose folder begins alike."""
    (node,) = engine.parse(inspected("/cache/kind/volumes", "/lib/modules"))
    assert (node.id, node.name, node.volumes) == ("abc", "some-worker", ("v1",))
    assert node.outside(Path("/var/lib/x")) == Path("/s/volumes/v1/_data/lib/x")
    assert node.belongs(Path("/cache/kind"))
    assert not node.belongs(Path("/cache/kind1"))
    assert not node.belongs(Path("/other/kind"))
    (foreign,) = engine.parse(inspected("/lib/modules"))
    assert not foreign.belongs(Path("/cache/kind"))


def test_only_the_chains_of_netavark_are_removed_and_rules_before_chains() -> None:
    saved = """# Generated
*filter
:FORWARD ACCEPT [0:0]
:NETAVARK_FORWARD - [0:0]
-A FORWARD -i docker0 -j ACCEPT
-A FORWARD -m comment --comment "netavark firewall plugin rules" -j NETAVARK_FORWARD
COMMIT
*mangle
:OUTPUT ACCEPT [0:0]
COMMIT
"""
    assert engine.removal(saved) == (
        '*filter\n-D FORWARD -m comment --comment "netavark firewall plugin rules" -j NETAVARK_FORWARD\n'
        "-X NETAVARK_FORWARD\nCOMMIT\n"
    )
    assert engine.removal("") == ""
