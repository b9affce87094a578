"""Pure parts of a control plane: builds, command lines, audit log; without a control plane."""

from __future__ import annotations

import itertools
import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster import deadlines
from e2e.cluster.audit import AuditLog, Mark
from e2e.cluster.control_plane import sweep
from e2e.cluster.errors import DeadlinePassed, ProcessEnded, ToolMissing
from e2e.cluster.processes import Daemons, identify, runs
from e2e.cluster.tools import KUBE, PAUSE, Tools, ensure, key, missing


def event(audit_id: str, **changes: Any) -> str:
    written = {
        "auditID": audit_id,
        "verb": "get",
        "user": {"username": "admin"},
        "userAgent": "kopf/1",
        "requestURI": "/api/v1/namespaces/a/pods/b?x=y",
        "responseStatus": {"code": 200},
        "objectRef": {"resource": "pods", "namespace": "a", "name": "b"},
    }
    return json.dumps(written | changes)


def test_the_key_changes_with_every_file_that_decides_what_is_built(tmp_path: Path) -> None:
    def fresh() -> str:
        key.cache_clear()
        return key(tmp_path)

    (tmp_path / "inner").mkdir()
    (tmp_path / "go.mod").write_text("module a\n")
    first = fresh()
    (tmp_path / "README.md").write_text("words")
    (tmp_path / "inner" / "go.mod").write_text("module b\n")
    (tmp_path / "inner" / "main.go").write_text("package main\n")
    assert fresh() == first
    (tmp_path / "main.go").write_text("package main\n")
    second = fresh()
    (tmp_path / "go.sum").write_text("a h1:b\n")
    third = fresh()
    (tmp_path / "go.mod").write_text("module c\n")
    assert len({first, second, third, fresh()}) == 4


def test_built_programs_need_no_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = Tools(tmp_path)
    tools.bin.mkdir(parents=True)
    tools.path(KUBE).touch()
    assert missing(tools, (KUBE, PAUSE)) == [PAUSE]
    monkeypatch.setenv("PATH", str(tmp_path))
    said: list[str] = []
    assert ensure((KUBE,), said.append, tmp_path) == tools
    assert said == []
    with pytest.raises(ToolMissing, match=r"Go 1\.26 or later is missing"):
        ensure((KUBE, PAUSE), said.append, tmp_path)


def test_the_audit_log_is_read_from_a_mark_and_without_a_half_written_line(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path)
    assert log.mark() == Mark(0)
    assert log.calls() == []
    path.write_text(event("1") + "\n")
    mark = log.mark()
    with path.open("a") as file:
        file.write(event("2", verb="list") + "\n" + event("3")[:20])
    assert log.counts(since=mark) == {("list", "pods"): 1}
    assert log.counts() == {("get", "pods"): 1, ("list", "pods"): 1}


def test_a_stale_record_kills_no_process(tmp_path: Path) -> None:
    """If the PID now belongs to another process, that one is not killed."""
    daemons = Daemons(tmp_path, bound=True)
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        identity = identify("old", other.pid)
        assert identity is not None
        stale = {"name": "old", "pid": other.pid, "started": identity.started - 1, "boot": identity.boot}
        (tmp_path / "processes" / "old.json").write_text(json.dumps(stale))
        daemons.stop_all()
        assert other.poll() is None
    finally:
        other.kill()
        other.communicate()


def test_an_ended_daemon_is_named_with_its_last_output(tmp_path: Path) -> None:
    daemons = Daemons(tmp_path, bound=True)
    identity = daemons.start("talker", [sys.executable, "-c", "input"])
    deadlines.wait_until("its end", deadlines.PROCESS_END, lambda: not runs(identity))
    (tmp_path / "logs" / "talker.log").write_text("one\nlast words\n")
    with pytest.raises(ProcessEnded, match=r"(?s)talker ended:.*last words"):
        daemons.check()
    daemons.stop_all()


def test_folders_of_killed_owners_are_swept_and_others_stay(tmp_path: Path) -> None:
    mine = identify("owner", os.getpid())
    assert mine is not None
    for name, owner in {"alive": mine, "dead": replace(mine, boot="earlier")}.items():
        folder = tmp_path / f"omni-control-plane-{name}"
        folder.mkdir()
        content = {"name": owner.name, "pid": owner.pid, "started": owner.started, "boot": owner.boot}
        (folder / "owner.json").write_text(json.dumps(content))
    (tmp_path / "omni-control-plane-young").mkdir()
    assert [path.name for path in sweep(tmp_path)] == ["omni-control-plane-dead"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["omni-control-plane-alive", "omni-control-plane-young"]


FIRST_THREAD_ENDS = """
import ctypes, socket, sys, threading, time
listener = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=time.sleep, args=(60,)).start()
print(listener.getsockname()[1], flush=True)
ctypes.PyDLL(None).pthread_exit(None)
"""


def test_a_process_has_ended_when_its_last_thread_has() -> None:
    """A killed program's first thread may end before those that keep its port."""
    process = subprocess.Popen([sys.executable, "-c", FIRST_THREAD_ENDS], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        stat = Path(f"/proc/{process.pid}/stat")
        deadlines.wait_until(
            "the first thread's end", 20, lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z"
        )
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        identity = identify("program", process.pid)
        assert identity is not None and runs(identity)
    finally:
        process.kill()
    deadlines.wait_until("its end", 20, lambda: not runs(identity))
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
    process.wait()


def test_a_wait_follows_the_progress_of_what_it_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlines, "PAUSE", 0.0)
    steps = itertools.count()
    probes = itertools.count()
    assert deadlines.wait_for_progress("it", 100, lambda: next(steps), lambda: next(probes) == 50 or None)
    with pytest.raises(DeadlinePassed, match="waited 3 steps for it"):
        deadlines.wait_for_progress("it", 3, lambda: next(steps), lambda: None)
    monkeypatch.setattr(deadlines, "NO_PROGRESS", 0.0)
    with pytest.raises(DeadlinePassed, match="waited for it, and nothing happened for 0 s"):
        deadlines.wait_for_progress("it", 3, lambda: 1.0, lambda: None)
