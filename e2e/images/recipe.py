"""What decides how an image turns out: its Dockerfile, its base, and the files that go in."""

import hashlib
import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.errors import BuildFailed

from .catalog import ROOT, Image

NO_TIME = (0, 0)


@dataclass(frozen=True, slots=True)
class Recipe:
    """An image to build. `key` names its content: base, Dockerfile, and every file that goes in."""

    image: Image
    base: str
    key: str

    @property
    def name(self) -> str:
        """The image's name with its tag: another content is another image, so no node runs an old one."""
        return f"{self.image.repository}:{self.key}"

    def archive(self, folder: Path) -> Path:
        """The path of its archive."""
        return folder / f"{self.image.folder}-{self.key}.tar"


def stage(image: Image, target: Path, root: Path = ROOT) -> None:
    """Copy an image's inputs and its Dockerfile into an empty folder, with fixed modification times.

    The image is named and built from there, so edits to the working tree during the build have no effect, and layers
    depend on content alone. Comments are removed from locked sets, because one of them changes with every line of
    pyproject.toml: the layer of installed packages, the largest, stays cached.

    Raises:
        BuildFailed: the image's ignore file names a file that is not there.
    """
    lines = (root / image.ignore).read_text(encoding="utf-8").splitlines()
    for name in [*inputs(root, lines), image.dockerfile]:
        copy = target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / name, copy)
        if copy.suffix == ".txt" and copy.parent.name == "requirements":
            locked = copy.read_text(encoding="utf-8").splitlines(keepends=True)
            copy.write_text("".join(line for line in locked if not line.startswith("#")), encoding="utf-8")
        copy.chmod(0o755 if os.access(copy, os.X_OK) else 0o644)
    for path in sorted(target.rglob("*"), reverse=True):
        if path.is_dir():
            path.chmod(0o755)
        os.utime(path, NO_TIME)


def recipe(image: Image, base: str, staged: Path) -> Recipe:
    """The recipe of staged files."""
    digest = hashlib.sha256(base.encode())
    for path in sorted(path for path in staged.rglob("*") if path.is_file()):
        mode = b"x" if os.access(path, os.X_OK) else b"-"
        digest.update(path.relative_to(staged).as_posix().encode() + b"\0" + mode)
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return Recipe(image, base, digest.hexdigest()[:16])


def inputs(root: Path, lines: Iterable[str]) -> list[str]:
    """Files that an ignore file of the form `*`, `!wanted`, `**/unwanted` lets in, as paths below `root`.

    Raises:
        BuildFailed: one of those it names is not there.
    """
    patterns = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    unwanted = {line.removeprefix("**/") for line in patterns if line.startswith("**/")}
    copied: list[str] = []
    for name in (line[1:] for line in patterns if line.startswith("!")):
        path = root / name
        if not path.exists():
            raise BuildFailed(f"{name} goes into the image and is not there")
        files = [path] if path.is_file() else [item for item in path.rglob("*") if item.is_file()]
        copied += [item.relative_to(root).as_posix() for item in files]
    return sorted(name for name in copied if not unwanted & set(name.split("/")))


def default_base(dockerfile: str) -> str:
    """The base that a Dockerfile takes where none is given.

    Raises:
        BuildFailed: it names none.
    """
    match = re.search(r"^ARG BASE=(\S+)$", dockerfile, re.MULTILINE)
    if match is None:
        raise BuildFailed("the Dockerfile has no ARG BASE")
    return match[1]
