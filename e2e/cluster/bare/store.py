"""Images for nodes: taken or unpacked once on this machine, then shared by hard links."""

import json
import shutil
import subprocess
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from e2e.cluster import deadlines
from e2e.cluster.errors import ClusterError
from e2e.cluster.images import names
from e2e.cluster.layered import LayeredImage, NodeImage, take
from e2e.cluster.processes import Daemons, run
from e2e.cluster.tools import Say

from .configuration import containerd_store

# Where a containerd keeps blobs, below its root.
BLOBS = Path("io.containerd.content.v1.content/blobs/sha256")
PACKED_GROWS = 3  # a compressed layer, unpacked
# how they begin (RFC 1952, RFC 8878)
GZIP = b"\x1f\x8b"
ZSTD = b"\x28\xb5\x2f\xfd"


def fingerprint(image: NodeImage) -> str:
    """A value that changes with the image; of an archive, without reading all of it."""
    if isinstance(image, LayeredImage):
        return image.fingerprint
    status = image.stat()
    return f"{status.st_size}-{status.st_mtime_ns}"


def names_of(image: NodeImage) -> list[str]:
    """The names that an image, or the images of an archive, go by."""
    return [image.name] if isinstance(image, LayeredImage) else names(image)


def outdated(images: Iterable[NodeImage], known: dict[str, str]) -> list[NodeImage]:
    """The images that are not there, or came from another content or archive.

    Args:
        known: fingerprint of each image, by its name.
    """
    return [image for image in images if any(known.get(name) != fingerprint(image) for name in names_of(image))]


def replaced(images: Iterable[NodeImage], known: Iterable[str]) -> list[str]:
    """Images of the same repositories as these, by other tags: earlier builds, each of gigabytes."""
    new = {name for image in images for name in names_of(image)}
    repositories = {name.rpartition(":")[0] for name in new}
    return sorted(name for name in known if name not in new and name.rpartition(":")[0] in repositories)


def remove_command(socket: Path, name: str) -> list[str]:
    """Remove an image from a containerd, and what no other needs."""
    return ["ctr", f"--address={socket}", "--namespace=k8s.io", "images", "remove", "--sync", name]


def tag_command(socket: Path, image: str, name: str) -> list[str]:
    """Give an image of a containerd a second name, also if another image has it."""
    return ["ctr", f"--address={socket}", "--namespace=k8s.io", "images", "tag", "--force", image, name]


def import_command(socket: Path, archive: Path) -> list[str]:
    """Take an archive into a containerd, where the kubelet looks for images."""
    return ["ctr", f"--address={socket}", "--namespace=k8s.io", "images", "import", str(archive)]


class Known:
    """A file with the fingerprint of each image, by the image's name."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[str, str]:
        digests: dict[str, str] = json.loads(self.path.read_text(encoding="utf-8")) if self.path.exists() else {}
        return digests

    def add(self, image: NodeImage) -> None:
        """Record an image, or all images of an archive."""
        taken = dict.fromkeys(names_of(image), fingerprint(image))
        self._write(self.read() | taken)

    def forget(self, name: str) -> None:
        """Forget an image that was removed."""
        self._write({known: came for known, came in self.read().items() if known != name})

    def _write(self, content: dict[str, str]) -> None:
        self.path.write_text(json.dumps(content, indent=1), encoding="utf-8")


class ImageStore:
    """Images in a containerd of their own, in `folder`; they outlive clusters.

    Nodes get copies whose files are hard links: layers never change. Only the databases are real copies.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "containerd"
        self.known = Known(folder / "known.json")

    def add(self, images: Sequence[NodeImage], say: Say) -> None:
        """Take the images that are new.

        Raises:
            ClusterError: an archive cannot be read, or the disk is too full to unpack it.
            CommandFailed: containerd refuses one.
        """
        known = self.known.read()
        new = outdated(images, known)
        if not new:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        old = replaced(new, known)
        refuse_full(self.folder, new, self.root / BLOBS)
        daemons = Daemons(self.folder, bound=True)
        socket = self.folder / "containerd.sock"
        settings = self.folder / "containerd.toml"
        settings.write_text(containerd_store(self.root, self.folder / "run", socket), encoding="utf-8")
        daemons.start("image-store", ["containerd", "--config", str(settings)])
        try:
            deadlines.wait_until("containerd", deadlines.COMMAND, lambda: answers(daemons, socket))
            for image in new:
                say(f"taking the image {image.name}")
                take_in(socket, image, self.folder)
                self.known.add(image)
            # After those that are new, which may share layers with them.
            for name in old:
                run(remove_command(socket, name), deadline=deadlines.IMPORT_IMAGE)
                self.known.forget(name)
        finally:
            daemons.stop_all()
            shutil.rmtree(self.folder / "run", ignore_errors=True)
            for left in self.folder.glob("containerd.sock*"):
                left.unlink()

    def copy(self, target: Path, known: Known) -> None:
        """Give a node its own copy of the store. Both have to be on one file system."""
        run(["cp", "--archive", "--link", str(self.root), str(target)], deadline=deadlines.IMPORT_IMAGE)
        for database in sorted(self.root.rglob("*.db")):
            copied = target / database.relative_to(self.root)
            copied.unlink()
            shutil.copy2(database, copied)
        shutil.copy2(self.known.path, known.path)


def take_in(socket: Path, image: NodeImage, scratch: Path) -> None:
    """Give an image to a containerd, by hard links or from its archive."""
    if isinstance(image, LayeredImage):
        take(["ctr", f"--address={socket}", "--namespace=k8s.io"], image, scratch)
    else:
        run(import_command(socket, image), deadline=deadlines.IMPORT_IMAGE)


def load(socket: Path, known: Known, image: NodeImage) -> None:
    """Give an image to the containerd of a node that runs, unless it has it.

    Raises:
        ClusterError: it cannot be read, or the disk is too full to unpack it.
        CommandFailed: containerd refuses it.
    """
    if not outdated([image], known.read()):
        return
    refuse_full(known.path.parent, [image], known.path.parent / "containerd" / BLOBS)
    take_in(socket, image, known.path.parent)
    known.add(image)


def answers(daemons: Daemons, socket: Path) -> bool:
    """Whether a containerd takes calls."""
    daemons.check()
    command = ["ctr", f"--address={socket}", "version"]
    return subprocess.run(command, capture_output=True, timeout=deadlines.COMMAND, check=False).returncode == 0


def room(archive: Path, blobs: Path) -> int:
    """Bytes that an archive takes: each layer that is not among the blobs yet is kept as it is, and unpacked.

    Args:
        blobs: folder of a containerd's blobs, named by their SHA-256, as layers are in archives of either kind.
    """
    with tarfile.open(archive) as file:
        return sum(
            member.size * (1 + (PACKED_GROWS if packed(file, member) else 1))
            for member in file
            if member.isfile() and not (blobs / Path(member.name).stem).exists()
        )


def packed(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bool:
    """Whether a layer is compressed."""
    content = archive.extractfile(member)
    return content is not None and content.read(4).startswith((GZIP, ZSTD))


def refuse_full(folder: Path, images: Sequence[NodeImage], blobs: Path) -> None:
    """Refuse archives that do not fit on the disk; folders of layers are shared and take no room.

    Raises:
        ClusterError: there is less room than unpacking takes.
    """
    archives = [image for image in images if isinstance(image, Path)]
    needed = sum(room(archive, blobs) for archive in archives)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ClusterError(
            f"unpacking {', '.join(archive.name for archive in archives)} needs {needed / 2**30:.1f} GiB in {folder}, "
            f"and {free / 2**30:.1f} GiB are free"
        )
