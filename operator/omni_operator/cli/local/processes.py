"""Processes that a run leaves behind: found, terminated and reaped (Linux)."""

import ctypes
import os
import signal
from pathlib import Path

import psutil

_PR_SET_CHILD_SUBREAPER = 36
# Seconds that processes get to exit after the trainer has ended, and again after SIGTERM.
GRACE_SECONDS = 5.0
KILL_ATTEMPTS = 5
KILLED_SECONDS = 1.0  # that the kernel gets to end a process, however little grace it had


def adopt_orphans() -> None:
    """Become the parent of all descendants that lose theirs, so that `terminate_descendants` finds them.

    Raises:
        OSError: the kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def open_paths(process: psutil.Process) -> frozenset[str]:
    """Files that a process has open or mapped; empty if it has ended or belongs to another user."""
    try:
        opened = {file.path for file in process.open_files()}
        return frozenset(opened | {mapped.path for mapped in process.memory_maps()})
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return frozenset()


def mapped_files(pid: int, folder: Path) -> dict[int, str]:
    """Files in a folder that a process has mapped, by inode, with the name of each when it was opened.

    The C library makes a semaphore under another name, removes that, and it is the one that the kernel shows. Empty if
    the process has ended or belongs to another user.
    """
    try:
        lines = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    mappings = (line.split(maxsplit=5) for line in lines if f" {folder}/" in line)
    return {int(inode): path for _, _, _, _, inode, path in mappings}


def find_users(path: Path) -> list[int]:
    """Ids of the processes that have a file open, as far as this user can see them."""
    wanted = str(path.resolve())
    return sorted(process.pid for process in psutil.process_iter() if wanted in open_paths(process))


def terminate_descendants(grace: float = GRACE_SECONDS) -> list[str]:
    """Terminate all descendants of this process. After `adopt_orphans` these are all processes of a run.

    They get `grace` seconds to exit by themselves, then SIGTERM and as long again, then SIGKILL.

    Returns:
        names of the processes that needed a signal.

    Raises:
        RuntimeError: a process survived SIGKILL.
    """
    signalled: dict[int, str] = {}
    psutil.wait_procs(_running_descendants(), timeout=grace)
    for number in (signal.SIGTERM, *([signal.SIGKILL] * KILL_ATTEMPTS)):
        if not (left := _running_descendants()):
            break
        for process in left:
            _send(process, number, signalled)
        psutil.wait_procs(left, timeout=max(grace, KILLED_SECONDS) if number == signal.SIGKILL else grace)
    if left := _running_descendants():
        raise RuntimeError(f"processes survived SIGKILL: {', '.join(str(process.pid) for process in left)}")
    return sorted(signalled.values())


def _running_descendants() -> list[psutil.Process]:
    """Descendants that have not ended; own children that have ended are reaped."""
    running = []
    for process in psutil.Process().children(recursive=True):
        try:
            if process.status() != psutil.STATUS_ZOMBIE:
                running.append(process)
            elif process.ppid() == os.getpid():
                process.wait()
        except psutil.NoSuchProcess:
            continue  # ended since the list was made
    return running


def _send(process: psutil.Process, number: signal.Signals, signalled: dict[int, str]) -> None:
    try:
        name = process.name()
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return  # it ended by itself
    signalled[process.pid] = name
