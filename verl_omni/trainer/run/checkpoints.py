"""Checkpoint folders: complete or absent, with the newest ones of each run kept.

A checkpoint is a folder `step_NNNNNN` with a manifest, which is written last and lists every other file and its size.
A folder without a manifest, or with other files than it lists, is no checkpoint.
"""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec

MANIFEST = "manifest.json"
_WRITING = ".writing_step_"
_REPLACED = ".replaced_step_"
_NAME = re.compile(r"^step_(\d{6,})$")


class Manifest(msgspec.Struct, frozen=True):
    """Contents of a checkpoint.

    Attributes:
        run: number of the run that wrote it, among those that wrote into the same folder. A run that resumes from the
            newest checkpoint there continues its run.
        files: size in bytes by path in the checkpoint.
    """

    step: int
    run: int
    files: dict[str, int]


def steps(folder: Path) -> list[int]:
    """Steps with a complete checkpoint, in order."""
    return sorted(manifest.step for manifest in _manifests(folder))


def path_of(folder: Path, step: int) -> Path:
    """Folder of the checkpoint of `step`."""
    return folder / f"step_{step:06d}"


def latest(folder: Path) -> Path | None:
    """The last complete checkpoint of the last run that wrote into the folder."""
    newest = max(_manifests(folder), key=lambda each: (each.run, each.step), default=None)
    return None if newest is None else path_of(folder, newest.step)


def run_number(folder: Path, resumed_from: Path | None) -> int:
    """Number of a run that writes into `folder`: the number of the run that it continues, or a new one.

    Args:
        resumed_from: checkpoint that the run starts from.
    """
    newest = max((manifest.run for manifest in _manifests(folder)), default=0)
    return max(newest, 1) if resumed_from is not None and resumed_from == latest(folder) else newest + 1


def step_of(checkpoint: Path) -> int:
    """Step of a checkpoint's folder.

    Raises:
        FileNotFoundError: there is no such folder, or it is not complete.
        ValueError: its name is not a checkpoint's.
    """
    if not checkpoint.is_dir():
        raise FileNotFoundError(f"no checkpoint {checkpoint}; write the path of a folder step_NNNNNN")
    if (match := _NAME.match(checkpoint.name)) is None:
        raise ValueError(f"{checkpoint} is not a checkpoint; write the path of a folder step_NNNNNN")
    if _read(checkpoint) is None:
        raise FileNotFoundError(
            f"{checkpoint} is not complete: {MANIFEST} is missing, or lists files that are missing or of another size; "
            "write the path of another checkpoint"
        )
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


def save(folder: Path, step: int, write: Callable[[Path], None], *, keep: int, run: int) -> Path:
    """Write a checkpoint aside, flush it to disk and rename it into place; then delete the oldest ones of this run.

    Args:
        write: writes the checkpoint into the folder that it gets.
        keep: number of checkpoints of this run to keep; all if it is not positive.
        run: `run_number` of this run.

    Raises:
        OSError: `write` wrote nothing; there is no new checkpoint.
        Exception: `write` raised it; the incomplete checkpoint is deleted.
    """
    aside = begin(folder, step)
    try:
        write(aside)
        return complete(folder, step, keep=keep, run=run)
    except BaseException:
        abandon(folder, step)
        raise


def recover(folder: Path) -> None:
    """Restore the checkpoint of a step that a killed run was replacing: the new one if it is complete."""
    for replaced in folder.glob(f"{_REPLACED}*"):
        step = int(replaced.name.removeprefix(_REPLACED))
        if not path_of(folder, step).exists():
            written = _aside(folder, step)
            (written if _read(written) is not None else replaced).rename(path_of(folder, step))


def begin(folder: Path, step: int) -> Path:
    """An empty folder for the checkpoint of `step`, which counts as a checkpoint only after `complete`.

    Deletes what killed runs left, so only one checkpoint of a folder may be written at a time.
    """
    folder.mkdir(parents=True, exist_ok=True)
    recover(folder)
    for left in [*folder.glob(f"{_WRITING}*"), *folder.glob(f"{_REPLACED}*")]:
        shutil.rmtree(left, ignore_errors=True)
    aside = _aside(folder, step)
    aside.mkdir()
    return aside


def abandon(folder: Path, step: int) -> None:
    """Delete what was written since `begin`."""
    shutil.rmtree(_aside(folder, step), ignore_errors=True)


def complete(folder: Path, step: int, *, keep: int, run: int) -> Path:
    """Make what was written since `begin` the checkpoint of `step`; then delete the oldest ones of this run.

    Checkpoints of later steps do not count: an earlier attempt left them, and repeating a step replaces its own.

    Raises:
        OSError: nothing was written, or it cannot be flushed to disk.
    """
    aside = _aside(folder, step)
    final = path_of(folder, step)
    replaced = folder / f"{_REPLACED}{step:06d}"
    _write_manifest(aside, step, run)
    _flush(aside)
    if final.exists():
        os.replace(final, replaced)
    os.replace(aside, final)
    _sync(folder)
    shutil.rmtree(replaced, ignore_errors=True)
    own = [manifest.step for manifest in _manifests(folder) if manifest.run == run and manifest.step <= step]
    for old in sorted(own)[:-keep] if keep > 0 else []:
        shutil.rmtree(path_of(folder, old))
    return final


def _aside(folder: Path, step: int) -> Path:
    return folder / f"{_WRITING}{step:06d}"


def _write_manifest(root: Path, step: int, run: int) -> None:
    files = _sizes(root)
    if not files:
        raise OSError(f"the checkpoint of step {step} has no files: is {root} on a file system that all nodes share?")
    (root / MANIFEST).write_bytes(msgspec.json.encode(Manifest(step, run, files)))


def _manifests(folder: Path) -> list[Manifest]:
    """Manifests of the complete checkpoints in a folder."""
    if not folder.is_dir():
        return []
    read = (_read(entry) for entry in folder.iterdir() if _NAME.match(entry.name))
    return [manifest for manifest in read if manifest is not None]


def _read(checkpoint: Path) -> Manifest | None:
    """The manifest of a complete checkpoint."""
    try:
        manifest = msgspec.json.decode((checkpoint / MANIFEST).read_bytes(), type=Manifest)
    except (OSError, msgspec.DecodeError):
        return None
    sizes = _sizes(checkpoint)
    return manifest if all(sizes.get(name) == size for name, size in manifest.files.items()) else None


def _sizes(root: Path) -> dict[str, int]:
    """Sizes of all files but the manifest, by path."""
    files = (path for path in sorted(root.rglob("*")) if path.is_file() and path != root / MANIFEST)
    return {path.relative_to(root).as_posix(): path.stat().st_size for path in files}


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
