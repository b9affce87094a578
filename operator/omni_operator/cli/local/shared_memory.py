"""Shared memory that a run leaves in /dev/shm: unused segments would stay until the machine restarts."""

import os
import re
from pathlib import Path

import psutil

from .processes import mapped_files, open_paths

FOLDER = Path("/dev/shm")
# Names of segments of Python's shared memory and semaphores, torch, Ray's object store, and weight updates.
STACK_NAMES = re.compile(r"^(psm_|sem\.|torch_|plasma|verl|omni|shm_)")


def segments(folder: Path = FOLDER) -> frozenset[tuple[str, int]]:
    """Name and inode of the files that exist."""
    if not folder.is_dir():
        return frozenset()
    entries = (entry for entry in os.scandir(folder) if entry.is_file(follow_symlinks=False))
    return frozenset((entry.name, entry.inode()) for entry in entries)


def remove_newer(before: frozenset[tuple[str, int]], folder: Path = FOLDER) -> list[str]:
    """Remove segments of the training stack that belong to this user and that no process uses.

    Args:
        before: the segments that stay, because they existed before the run.

    Returns:
        names of the removed ones.
    """
    new = dict(sorted(segment for segment in segments(folder) - before if STACK_NAMES.match(segment[0])))
    if not new:
        return []
    names = _names_in_use(folder)
    inodes = {inode for pid in psutil.pids() for inode in mapped_files(pid, folder)}
    unused = [name for name in new if name not in names and new[name] not in inodes]
    return [name for name in unused if _remove(folder / name)]


def _names_in_use(folder: Path) -> frozenset[str]:
    """Names of the files in `folder` that a process has open or mapped."""
    prefix = f"{folder}/"
    opened = (path for process in psutil.process_iter() for path in open_paths(process))
    return frozenset(path.removeprefix(prefix) for path in opened if path.startswith(prefix))


def _remove(path: Path) -> bool:
    """Whether the file belonged to this user and was removed here."""
    try:
        if path.stat().st_uid != os.getuid():
            return False
        path.unlink()
    except FileNotFoundError:
        return False  # its owner removed it first
    return True
