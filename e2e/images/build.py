"""An image of the working tree, built where no image of the same content is there."""

import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.errors import BuildFailed, ToolMissing
from e2e.cluster.layered import NodeImage
from e2e.cluster.tools import Say, locked

from .builders import Builder
from .catalog import GB, ROOT, Image
from .recipe import Recipe, recipe, stage

DISK_FULL = "no space left on device"


@dataclass(frozen=True, slots=True)
class Built:
    """An image by its name, and in the form that nodes take."""

    name: str
    image: NodeImage


def check_room(image: Image, folder: Path, free: int, peak: int) -> None:
    """
    Raises:
        ToolMissing: the disk has no room; the message says how much is missing.
    """
    if free < peak:
        raise ToolMissing(
            f"the image {image.folder} takes up to {peak / GB:.0f} GB at its peak, and {folder} has "
            f"{free / GB:.0f} GB free: {(peak - free) / GB:.0f} GB more are needed"
        )


def build(image: Image, builder: Builder, folder: Path, say: Say, given: str | None = None, root: Path = ROOT) -> Built:
    """The image; built where there is none of exactly this content. Earlier builds of it go.

    Args:
        folder: for builds and archives.
        given: the base, where it is not the builder's own.
        root: the checkout.

    Raises:
        ToolMissing: the disk has no room, or the base cannot be made here.
        BuildFailed: a step failed; its last lines are in the message.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder, say, "build of images"), tempfile.TemporaryDirectory(dir=folder) as context:
        staged = Path(context)
        stage(image, staged, root)
        base = given or builder.base((staged / image.dockerfile).read_text(encoding="utf-8"), say)
        planned = recipe(image, base, staged)
        archive = builder.find(planned, folder)
        if archive is not None:
            say(f"{image.folder} is built: {planned.name}")
            return Built(planned.name, archive)
        builder.clean()
        _make_room(planned, builder, folder, say)
        return Built(planned.name, _build(planned, builder, staged, folder, say))


def archives(image: Image, folder: Path) -> list[Path]:
    """The archives of an image, of any content."""
    return sorted(folder.glob(f"{image.folder}-????????????????.tar"))


def _make_room(made: Recipe, builder: Builder, folder: Path, say: Say) -> None:
    """Say what the build takes, and remove earlier builds where they leave too little room for it."""
    image = made.image
    peak = image.peak(first=not builder.names(image.repository))
    say(
        f"building {image.folder} (the first time {image.note}): takes up to {peak / GB:.0f} GB of disk, and "
        f"keeps {image.kept / GB:.0f} GB in {folder}"
    )
    # An archive goes before the new one is written.
    old = sum(path.stat().st_size for path in archives(image, folder))
    if shutil.disk_usage(folder).free + old < peak:
        say("the disk is short of room: earlier builds go")
        _forget_others(made, builder, folder)
        old = 0
    check_room(image, folder, shutil.disk_usage(folder).free + old, peak)


def _build(made: Recipe, builder: Builder, staged: Path, folder: Path, say: Say) -> NodeImage:
    started = time.monotonic()
    try:
        builder.build(made, staged, say)
    except BuildFailed as error:
        if DISK_FULL not in str(error):
            raise
        # Earlier builds have layers that this one may share, so they go only now.
        say("  the disk is full: earlier builds go, and it begins again")
        _forget_others(made, builder, folder)
        builder.build(made, staged, say)
    _forget_others(made, builder, folder)
    delivered = builder.deliver(made, folder)
    say(f"built {made.image.folder} in {time.monotonic() - started:.0f} s: {made.name}")
    return delivered


def _forget_others(made: Recipe, builder: Builder, folder: Path) -> None:
    for old in archives(made.image, folder):
        old.unlink()
    builder.forget(made.image.repository, made.name)
