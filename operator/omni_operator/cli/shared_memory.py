"""What a run left in /dev/shm: segments that no process uses would stay until the machine restarts."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from .processes import open_files, table

FOLDER = Path("/dev/shm")
# Names that the stack gives its segments: Python's shared memory and semaphores, torch, Ray's store, weight
# updates. Anything else is someone else's.
OURS = re.compile(r"^(psm_|sem\.|torch_|plasma|verl|omni|shm_)")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The files that were there before the run."""

    files: frozenset[tuple[str, int]]  # name and inode

    @classmethod
    def take(cls, folder: Path = FOLDER) -> Snapshot:
        return cls(frozenset(_files(folder)))

    def clean(self, folder: Path = FOLDER) -> list[str]:
        """Remove what has come since, is the stack's and this user's, and no process has open. Returns the names."""
        new = [name for name, inode in _files(folder) if (name, inode) not in self.files and OURS.match(name)]
        used = in_use(folder) if new else frozenset()
        return [name for name in sorted(new) if name not in used and _remove(folder / name)]


def in_use(folder: Path = FOLDER) -> frozenset[str]:
    """Names below `folder` that a process maps or has open."""
    prefix = f"{folder}/"
    opened = (path for process in table() for path in open_files(process.pid))
    return frozenset(path.removeprefix(prefix) for path in opened if path.startswith(prefix))


def _files(folder: Path) -> list[tuple[str, int]]:
    if not folder.is_dir():
        return []
    return [(entry.name, entry.inode()) for entry in os.scandir(folder) if entry.is_file(follow_symlinks=False)]


def _remove(path: Path) -> bool:
    """Whether it was this user's and is gone by our hand."""
    try:
        if path.stat().st_uid != os.getuid():
            return False
        path.unlink()
    except FileNotFoundError:
        return False  # its owner was faster
    return True
