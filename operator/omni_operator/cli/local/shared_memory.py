"""Shared memory that a run leaves in /dev/shm: unused segments would stay until the machine restarts."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

import psutil

from .processes import mapped_files, open_paths

FOLDER = Path("/dev/shm")
# Names of segments of Python's shared memory and semaphores, torch, Ray's object store, and weight updates.
STACK_NAMES = re.compile(r"^(psm_|sem\.|torch_|plasma|verl|omni|shm_)")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The files that existed before the run, by name and inode."""

    files: frozenset[tuple[str, int]]

    @classmethod
    def take(cls, folder: Path = FOLDER) -> Snapshot:
        return cls(frozenset(_files(folder)))

    def remove_newer(self, folder: Path = FOLDER) -> list[str]:
        """Remove newer segments of the training stack that belong to this user and that no process uses.

        Returns:
            their names.
        """
        new = {
            name: inode for name, inode in _files(folder) if (name, inode) not in self.files and STACK_NAMES.match(name)
        }
        if not new:
            return []
        names = _names_in_use(folder)
        inodes = {inode for pid in psutil.pids() for inode in mapped_files(pid, folder)}
        unused = [name for name in sorted(new) if name not in names and new[name] not in inodes]
        return [name for name in unused if _remove(folder / name)]


def _names_in_use(folder: Path) -> frozenset[str]:
    """Names of the files in `folder` that a process has open or mapped."""
    prefix = f"{folder}/"
    opened = (path for process in psutil.process_iter() for path in open_paths(process))
    return frozenset(path.removeprefix(prefix) for path in opened if path.startswith(prefix))


def _files(folder: Path) -> list[tuple[str, int]]:
    if not folder.is_dir():
        return []
    return [(entry.name, entry.inode()) for entry in os.scandir(folder) if entry.is_file(follow_symlinks=False)]


def _remove(path: Path) -> bool:
    """Whether the file belonged to this user and was removed here."""
    try:
        if path.stat().st_uid != os.getuid():
            return False
        path.unlink()
    except FileNotFoundError:
        return False  # its owner removed it first
    return True
