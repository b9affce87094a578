"""Checkpoint folders: complete or absent, with the newest ones kept."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

_NAME = re.compile(r"^step_(\d{6,})$")


def steps(folder: Path) -> list[int]:
    """Steps with a complete checkpoint, in order."""
    if not folder.is_dir():
        return []
    return sorted(int(match[1]) for entry in folder.iterdir() if (match := _NAME.match(entry.name)))


def path_of(folder: Path, step: int) -> Path:
    """Folder of the checkpoint of `step`."""
    return folder / f"step_{step:06d}"


def latest(folder: Path) -> Path | None:
    """The newest complete checkpoint."""
    found = steps(folder)
    return path_of(folder, found[-1]) if found else None


def step_of(checkpoint: Path) -> int:
    """Step of a checkpoint's folder.

    Raises:
        FileNotFoundError: there is no such folder. ValueError: its name is not that of a checkpoint.
    """
    if not checkpoint.is_dir():
        raise FileNotFoundError(f"no checkpoint {checkpoint}; write the path of a folder step_NNNNNN")
    if (match := _NAME.match(checkpoint.name)) is None:
        raise ValueError(f"{checkpoint} is not a checkpoint; write the path of a folder step_NNNNNN")
    return int(match[1])


def set_aside(folder: Path) -> Path | None:
    """Rename the folder of an earlier run's checkpoints, so that they neither count as this run's nor are lost.

    Returns:
        The new name; None where there was no checkpoint.
    """
    if not steps(folder):
        return None
    number = 1
    while (aside := folder.with_name(f"{folder.name}-{number}")).exists():
        number += 1
    return folder.rename(aside)


def save(folder: Path, step: int, write: Callable[[Path], None], *, keep: int) -> Path:
    """Write a checkpoint aside, flush it to disk and rename it into place; then delete the oldest ones.

    Args:
        write: writes the checkpoint into the folder that it gets.
        keep: number of checkpoints to keep; 0 keeps all.

    Raises:
        Exception: `write` raised it; the incomplete checkpoint is deleted.
    """
    folder.mkdir(parents=True, exist_ok=True)
    final, aside = path_of(folder, step), folder / f".writing_step_{step:06d}"
    shutil.rmtree(aside, ignore_errors=True)  # left by a killed run
    try:
        aside.mkdir()
        write(aside)
        _flush(aside)
        if final.exists():
            shutil.rmtree(final)
        os.replace(aside, final)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    _sync(folder)
    for old in steps(folder)[:-keep] if keep else []:
        shutil.rmtree(path_of(folder, old))
    return final


def _flush(root: Path) -> None:
    for entry in sorted(root.rglob("*")):
        _sync(entry)
    _sync(root)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
