"""Processes of a run, whatever became of their parents (Linux)."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
# How long processes may take to follow the trainer by themselves, and to obey a SIGTERM.
GRACE_SECONDS = 5.0
ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Process:
    """A line of the process table."""

    pid: int
    parent: int
    name: str
    zombie: bool


def adopt_orphans() -> None:
    """Make this process the parent of descendants that lose theirs, so that none can hide from `descendants`.

    Raises:
        OSError: the kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def table() -> list[Process]:
    """All processes that can be seen."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            text = (entry / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue  # it has ended since it was listed
        # The name stands in parentheses and may hold anything, parentheses too.
        name = text[text.index("(") + 1 : text.rindex(")")]
        state, parent = text[text.rindex(")") + 2 :].split()[:2]
        found.append(Process(int(entry.name), int(parent), name, state in "ZX"))
    return found


def descendants(processes: Iterable[Process], root: int) -> list[Process]:
    """PURE: everything below `root` in the process table."""
    children: dict[int, list[Process]] = {}
    for process in processes:
        children.setdefault(process.parent, []).append(process)
    found, todo = [], list(children.get(root, []))
    while todo:
        process = todo.pop()
        found.append(process)
        todo += children.get(process.pid, [])
    return found


def open_files(pid: int) -> frozenset[str]:
    """Paths that a process has open or mapped; none where it has ended or belongs to another user."""
    folder = Path(f"/proc/{pid}")
    try:
        links = list((folder / "fd").iterdir())
        maps = (folder / "maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return frozenset()
    found = {line[line.index("/") :] for line in maps if "/" in line}
    for link in links:
        try:
            found.add(os.readlink(link))
        except OSError:
            continue  # closed since it was listed, as the listing itself always is
    return frozenset(found)


def having_open(path: Path) -> list[int]:
    """Processes that have a file open, as far as they can be seen."""
    wanted = str(path.resolve())
    return sorted(process.pid for process in table() if wanted in open_files(process.pid))


def end_all(grace: float = GRACE_SECONDS) -> list[str]:
    """End whatever this process has below it. After `adopt_orphans` that is all that a run has left.

    They get `grace` seconds to end by themselves, then SIGTERM and as long again, then SIGKILL.

    Returns:
        names of those that needed a signal.

    Raises:
        RuntimeError: something is still there.
    """
    needed: dict[int, str] = {}
    _wait_for(_left(), grace)
    for number in (signal.SIGTERM, *([signal.SIGKILL] * ROUNDS)):
        if not (left := _left()):
            break
        for process in left:
            needed[process.pid] = process.name
            _send(process.pid, number)
        _wait_for(left, grace)
    if left := _left():
        raise RuntimeError(f"still there after SIGKILL: {', '.join(f'{p.name} ({p.pid})' for p in left)}")
    return sorted(needed.values())


def _left() -> list[Process]:
    below = descendants(table(), os.getpid())
    for process in below:
        if process.zombie and process.parent == os.getpid():
            _reap(process.pid)
    return [process for process in below if not process.zombie]


def _wait_for(processes: Iterable[Process], seconds: float) -> None:
    """Until all of them have ended, at most `seconds`. The kernel tells; nothing is polled."""
    watched = []
    for process in processes:
        try:
            watched.append(os.pidfd_open(process.pid))
        except ProcessLookupError:
            continue
    deadline = time.monotonic() + seconds
    try:
        waiting = list(watched)
        while waiting and (rest := deadline - time.monotonic()) > 0:
            ended, _, _ = select.select(waiting, [], [], rest)
            waiting = [descriptor for descriptor in waiting if descriptor not in ended]
    finally:
        for descriptor in watched:
            os.close(descriptor)


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return  # it ended meanwhile, which is what was wanted


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return  # reaped already
