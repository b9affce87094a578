"""Program that `drl fetch` runs in a pod: it writes files of a run folder to standard output, as a tar archive.

Needs only Python's standard library: `python3 -c PROGRAM FOLDER results|checkpoints|FILE`; FILE is the name of a file
in FOLDER itself. Links and other special files are left out.
"""

import os
import stat
import sys
import tarfile
from collections.abc import Iterator


def find_files(root: str, what: str) -> Iterator[str]:
    """Paths of the files to send: those in `root` itself, samples, and the newest adapter or all of them.

    Anything else than `results` and `checkpoints` is the name of a file in `root`, which is then the only one. Adapters
    are in checkpoints, and in `adapters`; without its manifest, which is written last, none of them is complete.
    """
    if what not in ("results", "checkpoints"):
        yield from (path for path in regular_files(root, deep=False) if os.path.basename(path) == what)
        return
    yield from regular_files(root, deep=False)
    yield from regular_files(os.path.join(root, "samples"))
    folders = [os.path.join(root, name) for name in ("adapters", "checkpoints")]
    steps = [os.path.join(folder, step) for folder in folders if os.path.isdir(folder) for step in os.listdir(folder)]
    complete = [step for step in steps if os.path.isfile(os.path.join(step, "manifest.json"))]
    complete.sort(key=lambda step: (os.path.basename(step), step))
    for step in complete if what == "checkpoints" else complete[-1:]:
        yield from regular_files(step if what == "checkpoints" else os.path.join(step, "lora"))


def regular_files(folder: str, *, deep: bool = True) -> Iterator[str]:
    """Regular files in a folder, in order; with `deep` also below it."""
    for name, folders, files in os.walk(folder):
        folders.sort()
        for file in sorted(files):
            path = os.path.join(name, file)
            if stat.S_ISREG(os.lstat(path).st_mode):
                yield path
        if not deep:
            return


def main(root: str, what: str) -> None:
    """Write the archive; exits with a message if there is no such folder."""
    if not os.path.isdir(root):
        sys.exit(f"there is no run folder {root}")
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as archive:
        for path in find_files(root, what):
            archive.add(path, os.path.relpath(path, root), recursive=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
