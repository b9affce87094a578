"""Pure parts of a control plane: builds, records of processes, folders; without a control plane."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from e2e.cluster.control_plane import sweep
from e2e.cluster.processes import Daemons, identify


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
