"""What a worker process of the engine leaves in shared memory when it is killed.

Python's resource tracker would remove it at the end of the server. But Ray kills a worker's children before that
(CoreWorker::KillChildProcs), and the tracker is one of them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

import psutil

FOLDER = Path("/dev/shm")
# What Python calls its segments, and its semaphores; who has a semaphore removes it, and complains where it is gone.
SEGMENT, SEMAPHORE = "psm_", "sem.mp-"


def child_segments() -> set[Path]:
    """The files of Python in /dev/shm that processes below this one have mapped."""
    return _mapped(process.pid for process in psutil.Process().children(recursive=True))


def remove_segments(files: set[Path]) -> None:
    """Remove those of an engine that has ended, but for semaphores that this process still has."""
    own = _mapped([os.getpid()])
    for file in files:
        if not (file.name.startswith(SEMAPHORE) and file in own):
            file.unlink(missing_ok=True)


def _mapped(pids: Iterable[int]) -> set[Path]:
    """By number, not by name: a semaphore is mapped before it gets its name (glibc's sem_open)."""
    numbers = {number for pid in pids for number in _numbers(pid)}
    found = set()
    for path in FOLDER.iterdir():
        with contextlib.suppress(FileNotFoundError):
            if path.name.startswith((SEGMENT, SEMAPHORE)) and path.stat().st_ino in numbers:
                found.add(path)
    return found


def _numbers(pid: int) -> set[int]:
    """Inodes of what a process has mapped from there; none of one that has ended."""
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
        return {int(line.split()[4]) for line in lines if f"{FOLDER}/" in line}
    return set()
