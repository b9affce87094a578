"""An image of the working tree, built where its archive is missing."""

from __future__ import annotations

import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.errors import BuildFailed, ToolMissing
from e2e.cluster.tools import Say, locked

from .catalog import GB, ROOT, Image
from .engines import Engine
from .recipe import Recipe, recipe, stage

DISK_FULL = "no space left on device"


@dataclass(frozen=True, slots=True)
class Built:
    """An image as nodes know it, and the archive that holds it."""

    name: str
    archive: Path


def check_room(image: Image, folder: Path, free: int) -> None:
    """
    Raises:
        ToolMissing: the disk has no room; the message says how much is missing.
    """
    if free < image.room:
        raise ToolMissing(
            f"the image {image.folder} takes up to {image.room / GB:.0f} GB at its peak, and {folder} has "
            f"{free / GB:.0f} GB free: {(image.room - free) / GB:.0f} GB more are needed"
        )


def build(image: Image, engine: Engine, folder: Path, say: Say, given: str | None = None, root: Path = ROOT) -> Built:
    """The image; built where there is no archive of exactly this content. Archives of other contents go.

    Args:
        folder: where everything lies that is built.
        given: the base, where it is not the engine's own.
        root: the checkout.

    Raises:
        ToolMissing: the disk has no room, or the base cannot be made here.
        BuildFailed: a step failed; its last lines are in the message.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder, say, "build of images"), tempfile.TemporaryDirectory(dir=folder) as context:
        staged = Path(context)
        stage(image, staged, root)
        base = given or engine.base((staged / image.dockerfile).read_text(encoding="utf-8"), say)
        made = recipe(image, base, staged)
        archive = made.archive(folder)
        if archive.exists():
            say(f"{image.folder} is built: {made.name}")
        else:
            engine.clean()
            # The archives of earlier builds go before the new one is written.
            old = sum(path.stat().st_size for path in archives(image, folder))
            if shutil.disk_usage(folder).free + old < image.room:
                say("the disk is short of room: earlier builds go")
                _forget_others(made, engine, folder)
                old = 0
            check_room(image, folder, shutil.disk_usage(folder).free + old)
            say(f"building {image.folder} (the first time {image.note})")
            _build(made, engine, staged, folder, say)
        return Built(made.name, archive)


def archives(image: Image, folder: Path) -> list[Path]:
    """What is there of an image, of any content."""
    return sorted(folder.glob(f"{image.folder}-????????????????.tar"))


def _build(made: Recipe, engine: Engine, staged: Path, folder: Path, say: Say) -> None:
    started = time.monotonic()
    try:
        engine.build(made, staged, say)
    except BuildFailed as error:
        if DISK_FULL not in str(error):
            raise
        # Earlier builds have layers that this one may share, so they go only now.
        say("  the disk is full: earlier builds go, and it begins again")
        _forget_others(made, engine, folder)
        engine.build(made, staged, say)
    # What is older goes first: two archives of training fit on few disks.
    _forget_others(made, engine, folder)
    archive = made.archive(folder)
    part = archive.with_suffix(".part")
    part.unlink(missing_ok=True)
    say("  writing the archive")
    engine.write(made, part)
    part.rename(archive)
    size = archive.stat().st_size / GB
    say(f"built {made.image.folder} in {time.monotonic() - started:.0f} s: {made.name}, {size:.1f} GB in {archive}")


def _forget_others(made: Recipe, engine: Engine, folder: Path) -> None:
    for old in archives(made.image, folder):
        old.unlink()
    engine.forget(made.image.repository, made.name)
