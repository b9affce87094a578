"""What a run may leave behind when it is killed, and how to find exactly that."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

MARK = "DRL_RUN_ID"
SHARED_MEMORY = Path("/dev/shm")
# Names that the stack gives its segments: ours, torch's and Python's.
PATTERNS = ("verl_omni_weights_*", "torch_*", "psm_*", "sem.mp-*")


def processes(run_id: str) -> list[int]:
    """Processes whose environment carries the mark of a run, but not this one."""
    wanted = f"{MARK}={run_id}".encode()
    return [pid for pid in _all_processes() if pid != os.getpid() and wanted in _environment(pid).split(b"\0")]


def stop(run_id: str, grace: float) -> int:
    """End the processes of a run: SIGTERM, then SIGKILL after `grace` seconds. Returns how many there were."""
    found = processes(run_id)
    _signal(found, signal.SIGTERM)
    end = time.monotonic() + grace
    while processes(run_id) and time.monotonic() < end:
        time.sleep(0.1)
    _signal(processes(run_id), signal.SIGKILL)
    return len(found)


def segments() -> set[Path]:
    """Shared-memory files of the kinds that the stack makes."""
    return {path for pattern in PATTERNS for path in SHARED_MEMORY.glob(pattern)}


def remove_segments(before: set[Path]) -> list[Path]:
    """Remove segments that were not there before, that are ours, and that no living process maps."""
    mapped = _mapped()
    removed = []
    for path in sorted(segments() - before):
        try:
            if path.stat().st_uid == os.getuid() and str(path) not in mapped:
                path.unlink()
                removed.append(path)
        except FileNotFoundError:
            continue
    return removed


def _all_processes() -> Iterator[int]:
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # it has ended, or is somebody else's
        return b""


def _mapped() -> set[str]:
    found = set()
    for pid in _all_processes():
        try:
            lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
        except OSError:
            continue
        found |= {line.split(maxsplit=5)[5] for line in lines if str(SHARED_MEMORY) in line}
    return found


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
