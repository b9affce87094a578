"""Files that are written aside and then renamed, so that an error leaves the files that were there before."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PREFIX = ".staged-"


@contextmanager
def staged(folder: Path) -> Iterator[Path]:
    """A temporary folder; if the block succeeds, its files replace files of the same names in `folder`.

    It is inside `folder`, because `folder` may be a mount: its parent may be on another file system, or belong to
    another user.
    """
    existed = folder.is_dir()
    folder.mkdir(parents=True, exist_ok=True)
    staging_folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=folder))
    try:
        yield staging_folder
        for path in sorted(staging_folder.rglob("*")):
            target = folder / path.relative_to(staging_folder)
            if path.is_dir():
                target.mkdir(parents=True, exist_ok=True)
            else:
                path.replace(target)
    finally:
        shutil.rmtree(staging_folder)
        if not existed and not any(folder.iterdir()):
            folder.rmdir()
