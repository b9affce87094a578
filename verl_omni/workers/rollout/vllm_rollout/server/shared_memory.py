"""Removal of shared memory that killed worker processes of the engine leave behind.

Python's resource tracker would remove it when the server ends. But Ray first kills the server's child processes
(CoreWorker::KillChildProcs), and the tracker is one of them.
"""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

import psutil

FOLDER = Path("/dev/shm")
# Python's prefixes of segments and semaphores. The owner of a semaphore removes it, and warns if it is missing.
SEGMENT = "psm_"
SEMAPHORE = "sem.mp-"


def child_segments() -> set[Path]:
    """Python's files in /dev/shm that descendants of this process have mapped."""
    return _mapped(process.pid for process in psutil.Process().children(recursive=True))


def remove_segments(files: set[Path]) -> None:
    """Remove the files of an engine that has ended, except semaphores that this process still uses."""
    mapped_here = _mapped([os.getpid()])
    for file in files:
        if not (file.name.startswith(SEMAPHORE) and file in mapped_here):
            file.unlink(missing_ok=True)


def _mapped(pids: Iterable[int]) -> set[Path]:
    """Compared by inode, because a semaphore is mapped before it gets its name (glibc's sem_open)."""
    inodes = {inode for pid in pids for inode in _inodes(pid)}
    files = set()
    for path in FOLDER.iterdir():
        with contextlib.suppress(FileNotFoundError):
            if path.name.startswith((SEGMENT, SEMAPHORE)) and path.stat().st_ino in inodes:
                files.add(path)
    return files


def _inodes(pid: int) -> set[int]:
    """Inodes of the files in /dev/shm that a process has mapped; empty if it has ended."""
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
        return {int(line.split()[4]) for line in lines if f"{FOLDER}/" in line}
    return set()
