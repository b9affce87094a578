"""Unpacking an archive of a pod, which is not trusted, into a folder of the user's."""

from __future__ import annotations

import json
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, cast

MARKER = ".fetched.json"


class UnsafeArchive(Exception):
    """The archive has an entry that could write outside of its folder, or that is no regular file."""


class BrokenArchive(Exception):
    """The archive is malformed or ends too early."""


class FolderTaken(Exception):
    """The folder has something other than earlier results of the same job."""


class Readable(Protocol):
    """A source of bytes."""

    def read(self, size: int) -> bytes:
        """The next bytes, fewer than `size` only at the end."""


def check_folder(folder: Path, owner: dict[str, str]) -> None:
    """Refuse a folder that results of a job may not go to: it must be absent, empty, or have the same job's marker.

    Raises:
        FolderTaken: the message says what is there.
    """
    if not folder.is_dir():
        if folder.exists() or folder.is_symlink():
            raise FolderTaken(f"{folder} is not a folder")
        return
    if not any(folder.iterdir()):
        return
    try:
        found = json.loads((folder / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = None
    if found != owner:
        what = f"results of another job {found.get('job')}" if isinstance(found, dict) else "other files"
        raise FolderTaken(f"{folder} has {what}; give --to an empty or new folder")


@contextmanager
def staging(folder: Path, owner: dict[str, str]) -> Iterator[Path]:
    """A temporary folder next to `folder`; if the block succeeds, its files replace those of the same names there."""
    check_folder(folder, owner)
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        yield made
        (made / MARKER).write_text(json.dumps(owner), encoding="utf-8")
        for path in sorted(made.rglob("*")):
            target = folder / path.relative_to(made)
            if path.is_dir():
                target.mkdir(parents=True, exist_ok=True)
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                path.replace(target)
    finally:
        shutil.rmtree(made)


def unpack(source: Readable, folder: Path) -> list[str]:
    """Write the files of a tar archive into an empty folder, and return their names.

    Raises:
        UnsafeArchive: an entry has an absolute path, leaves the folder, is a link or special file, or is there twice.
        BrokenArchive: the archive is malformed or incomplete.
    """
    names: list[str] = []
    try:
        # A stream is only read, so this is all that tarfile needs of a file.
        with tarfile.open(fileobj=cast("Any", source), mode="r|") as archive:
            for member in archive:
                _check(member, names)
                # The filter also refuses what leads out of the folder, and drops set-uid bits and owners.
                archive.extract(member, folder, filter="data")
                names.append(member.name)
    except tarfile.FilterError as error:
        raise UnsafeArchive(str(error)) from error
    except (tarfile.TarError, EOFError) as error:
        raise BrokenArchive(f"the archive is malformed or incomplete: {error}") from error
    return names


def _check(member: tarfile.TarInfo, names: list[str]) -> None:
    if not member.isreg():
        raise UnsafeArchive(f"{member.name!r} is a link, a folder or a special file")
    if member.name.startswith("/") or ".." in member.name.split("/"):
        raise UnsafeArchive(f"{member.name!r} leads out of the folder")
    if member.name in names or member.name == MARKER:
        raise UnsafeArchive(f"{member.name!r} must not be in the archive (again)")
