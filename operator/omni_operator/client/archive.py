"""Unpacking an archive of a pod, which is not trusted, into a folder of the user's."""

import json
import tarfile
from collections.abc import Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Protocol, cast

from typing_extensions import override

from omni_operator.staged_files import PREFIX, staged

MARKER = ".fetched.json"
DEPTH_LIMIT = 64  # folders of a path; run folders have 5
HEADER_LIMIT = 1024 * 1024  # bytes between the contents of two files; tarfile reads them into memory


class UnsafeArchive(Exception):
    """The archive has an entry that could write outside of its folder, is no regular file, or is there twice."""


class BrokenArchive(Exception):
    """The archive is malformed or ends too early."""


class FolderTaken(Exception):
    """The folder has something other than earlier results of the same job."""


class Readable(Protocol):
    """A source of bytes."""

    def read(self, size: int) -> bytes:
        """The next bytes, fewer than `size` only at the end."""


@dataclass(slots=True)
class BoundedSource(Readable):
    """A source that gives no more than a number of bytes, which is set again for each part of the archive."""

    source: Readable
    left: int = HEADER_LIMIT

    @override
    def read(self, size: int) -> bytes:
        data = self.source.read(size)
        self.left -= len(data)
        if self.left < 0:
            raise UnsafeArchive(f"a header has more than {HEADER_LIMIT} bytes")
        return data


def check_folder(folder: Path, owner: dict[str, str]) -> None:
    """Refuse a folder that results of a job may not go to: it must be absent, empty, or have the same job's marker.

    Raises:
        FolderTaken: the message says what is there.
    """
    if not folder.is_dir():
        if folder.exists() or folder.is_symlink():
            raise FolderTaken(f"{folder} is not a folder")
        return
    # What a killed process has left does not count.
    if all(path.name.startswith(PREFIX) for path in folder.iterdir()):
        return
    try:
        earlier_owner = json.loads((folder / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        earlier_owner = None
    if earlier_owner != owner:
        what = (
            f"results of another job {earlier_owner.get('job')}" if isinstance(earlier_owner, dict) else "other files"
        )
        raise FolderTaken(f"{folder} has {what}")


@contextmanager
def staging(folder: Path, owner: dict[str, str]) -> Iterator[Path]:
    """As `staged`, for a folder that results of a job may go to, with the job's marker."""
    check_folder(folder, owner)
    with staged(folder) as staged_folder:
        yield staged_folder
        (staged_folder / MARKER).write_text(json.dumps(owner), encoding="utf-8")


def unpack(source: Readable, folder: Path) -> list[str]:
    """Write the files of a tar archive into an empty folder, and return their names.

    Raises:
        UnsafeArchive: an entry is no regular file, is not below the folder, is too deep in it, or is there twice; or a
            header is too large.
        BrokenArchive: the archive is malformed or incomplete.
    """
    paths: dict[PurePosixPath, None] = {}  # in the order of the archive
    bounded = BoundedSource(source)
    try:
        # A stream is only read, so this is all that tarfile needs of a file.
        with tarfile.open(fileobj=cast("Any", bounded), mode="r|") as archive:
            for member in archive:
                path = _checked_path(member, paths)
                # The filter also refuses what leads out of the folder, and drops set-uid bits and owners.
                bounded.left = member.size + HEADER_LIMIT
                archive.extract(member, folder, filter="data")
                bounded.left = HEADER_LIMIT
                paths[path] = None
    except tarfile.FilterError as error:
        raise UnsafeArchive(str(error)) from error
    except (FileExistsError, IsADirectoryError, NotADirectoryError) as error:
        # The folder was empty, so it is the archive that has a file where another entry needs a folder.
        raise BrokenArchive(f"the archive has a file that is a folder of another file: {error}") from error
    except (tarfile.TarError, EOFError, ValueError, ArithmeticError) as error:
        # ValueError and ArithmeticError: numbers and names in a header that tarfile passes on as they are.
        raise BrokenArchive(f"the archive is malformed or incomplete: {error}") from error
    return [str(path) for path in paths]


def _checked_path(member: tarfile.TarInfo, found: Container[PurePosixPath]) -> PurePosixPath:
    """The relative path of a file, without `.` and empty parts."""
    path = PurePosixPath(member.name)
    if not member.isreg() or member.issparse():
        raise UnsafeArchive(f"{member.name!r} is a link, a folder or a special file")
    if not path.parts or path.is_absolute() or ".." in path.parts:
        raise UnsafeArchive(f"{member.name!r} is not below the folder")
    if len(path.parts) > DEPTH_LIMIT:
        raise UnsafeArchive(f"{path.name!r} is in more than {DEPTH_LIMIT - 1} folders")
    if path in found or path.parts[0] == MARKER:
        raise UnsafeArchive(f"{member.name!r} must not be in the archive (again)")
    return path
