"""Images for nodes: unpacked once on this machine, then shared by hard links."""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from e2e.cluster import waits
from e2e.cluster.errors import ClusterError
from e2e.cluster.images import names
from e2e.cluster.processes import Daemons, run
from e2e.cluster.tools import Say

from .configuration import containerd_store

# Where a containerd keeps blobs, below its root.
BLOBS = Path("io.containerd.content.v1.content/blobs/sha256")
PACKED_GROWS = 3  # a compressed layer, unpacked
GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"  # how they begin (RFC 1952, RFC 8878)


def fingerprint(archive: Path) -> str:
    """Tells a changed archive without reading all of it."""
    status = archive.stat()
    return f"{status.st_size}-{status.st_mtime_ns}"


def outdated(archives: Iterable[Path], known: dict[str, str]) -> list[Path]:
    """Archives of which an image is not there, or came from another archive or an earlier state of this one.

    Args:
        known: fingerprint of the archive that each image came from last, by the image's name.
    """
    return [archive for archive in archives if any(known.get(name) != fingerprint(archive) for name in names(archive))]


def replaced(archives: Iterable[Path], known: Iterable[str]) -> list[str]:
    """Images of the same repositories as these archives, by other tags: earlier builds, each of gigabytes."""
    new = {name for archive in archives for name in names(archive)}
    repositories = {name.rpartition(":")[0] for name in new}
    return sorted(name for name in known if name not in new and name.rpartition(":")[0] in repositories)


def remove_command(socket: Path, name: str) -> list[str]:
    """Remove an image from a containerd, and what no other needs."""
    return ["ctr", f"--address={socket}", "--namespace=k8s.io", "images", "remove", "--sync", name]


def import_command(socket: Path, archive: Path) -> list[str]:
    """Take an archive into a containerd, where the kubelet looks for images."""
    return ["ctr", f"--address={socket}", "--namespace=k8s.io", "images", "import", str(archive)]


class Known:
    """A file that says from which archive each image came last: its fingerprint, by the image's name."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[str, str]:
        found: dict[str, str] = json.loads(self.path.read_text(encoding="utf-8")) if self.path.exists() else {}
        return found

    def add(self, archive: Path) -> None:
        """Remember the images of an archive that was taken in."""
        taken = dict.fromkeys(names(archive), fingerprint(archive))
        self._write(self.read() | taken)

    def forget(self, name: str) -> None:
        """An image is gone."""
        self._write({known: came for known, came in self.read().items() if known != name})

    def _write(self, content: dict[str, str]) -> None:
        self.path.write_text(json.dumps(content, indent=1), encoding="utf-8")


class ImageStore:
    """Images unpacked by a containerd of their own, in `folder`; they outlive clusters.

    Nodes get copies whose files are hard links: layers never change. Only the databases are real copies.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "containerd"
        self.known = Known(folder / "known.json")

    def add(self, archives: Sequence[Path], say: Say) -> None:
        """Unpack those archives that are new.

        Raises:
            ClusterError: an archive cannot be read, or the disk has no room for what is unpacked.
            CommandFailed: containerd refuses one.
        """
        known = self.known.read()
        new = outdated(archives, known)
        if not new:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        old = replaced(new, known)
        refuse_full(self.folder, new, self.root / BLOBS)
        daemons = Daemons(self.folder, bound=True)
        socket, settings = self.folder / "containerd.sock", self.folder / "containerd.toml"
        settings.write_text(containerd_store(self.root, self.folder / "run", socket), encoding="utf-8")
        daemons.start("image-store", ["containerd", "--config", str(settings)])
        try:
            waits.until("containerd", waits.COMMAND, lambda: answers(daemons, socket))
            for archive in new:
                say(f"unpacking the image {archive.name}")
                run(import_command(socket, archive), deadline=waits.IMPORT_IMAGE)
                self.known.add(archive)
            # After those that are new, which may share layers with them.
            for name in old:
                run(remove_command(socket, name), deadline=waits.IMPORT_IMAGE)
                self.known.forget(name)
        finally:
            daemons.stop_all()
            shutil.rmtree(self.folder / "run", ignore_errors=True)
            for left in self.folder.glob("containerd.sock*"):
                left.unlink()

    def copy(self, target: Path, known: Known) -> None:
        """Give a node its own store, and what is known of it. Both have to lie on one file system."""
        run(["cp", "--archive", "--link", str(self.root), str(target)], deadline=waits.IMPORT_IMAGE)
        for database in sorted(self.root.rglob("*.db")):
            own = target / database.relative_to(self.root)
            own.unlink()
            shutil.copy2(database, own)
        shutil.copy2(self.known.path, known.path)


def load(socket: Path, known: Known, archive: Path) -> None:
    """Take an archive into the containerd of a node that runs, unless it has it.

    Raises:
        ClusterError: it cannot be read, or the disk has no room for what is unpacked.
        CommandFailed: containerd refuses it.
    """
    if not outdated([archive], known.read()):
        return
    refuse_full(known.path.parent, [archive], known.path.parent / "containerd" / BLOBS)
    run(import_command(socket, archive), deadline=waits.IMPORT_IMAGE)
    known.add(archive)


def answers(daemons: Daemons, socket: Path) -> bool:
    """Whether a containerd takes calls."""
    daemons.check()
    command = ["ctr", f"--address={socket}", "version"]
    return subprocess.run(command, capture_output=True, timeout=waits.COMMAND, check=False).returncode == 0


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


def refuse_full(folder: Path, archives: Sequence[Path], blobs: Path) -> None:
    """
    Raises:
        ClusterError: there is less room than unpacking takes.
    """
    needed = sum(room(archive, blobs) for archive in archives)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ClusterError(
            f"unpacking {', '.join(archive.name for archive in archives)} needs {needed / 2**30:.1f} GiB in {folder}, "
            f"and {free / 2**30:.1f} GiB are free"
        )
