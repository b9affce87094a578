"""Pure parts of whole clusters: command lines, settings, images; without a cluster."""

import json
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.bare import machine
from e2e.cluster.bare.network import Network, collisions


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
