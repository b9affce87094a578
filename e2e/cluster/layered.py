"""Images whose layers are folders, as buildah keeps them: a containerd takes them by hard links, without an archive.

A layer of gigabytes is then on the disk once, and is never packed or unpacked. An image that is taken this way runs,
but cannot be exported: in place of each layer's archive it has an empty one.
"""

import hashlib
import json
import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from . import deadlines
from .errors import ClusterError
from .images import layout, write_layout
from .processes import run

EMPTY_TAR = bytes(1024)
# The writable folder among the mounts of a snapshot: of an overlay, or, for the lowest layer, of a bind mount.
WRITABLE = re.compile(r"(?:upperdir=|^mount -t bind )(/[^,\s]+/fs)(?=[,\s])", re.MULTILINE)
PROTECTED = "containerd.io/gc.root"  # `ctr` protects the snapshots it makes from garbage collection


@dataclass(frozen=True, slots=True)
class LayeredImage:
    """An image as its configuration (JSON of an OCI or Docker image) and the folders of its layers, the lowest first.

    The folders have the format of overlayfs: a file that a layer removes is a character device 0/0.
    """

    name: str
    config: str
    layers: tuple[Path, ...]

    @property
    def settings(self) -> dict[str, Any]:
        """The part of the configuration that says how the image runs: User, Env, Entrypoint and so on."""
        run_settings: dict[str, Any] = json.loads(self.config)["config"]
        return run_settings

    @property
    def chain(self) -> list[str]:
        """The identity of each layer together with all below it, by which containerd names snapshots (OCI: ChainID).

        Raises:
            ClusterError: the configuration names another number of layers than there are folders.
        """
        digests: list[str] = json.loads(self.config)["rootfs"]["diff_ids"]
        if len(digests) != len(self.layers):
            raise ClusterError(f"{self.name}: {len(digests)} layers are named and {len(self.layers)} folders found")
        return list(
            accumulate(digests, lambda below, own: f"sha256:{hashlib.sha256(f'{below} {own}'.encode()).hexdigest()}")
        )

    @property
    def fingerprint(self) -> str:
        """The identity of the image's content."""
        return hashlib.sha256(self.config.encode()).hexdigest()


# An image in a form that a node takes: an archive (OCI or Docker), or folders on the node's own file system.
NodeImage = Path | LayeredImage


def writable(mounts: str) -> Path:
    """The folder that a snapshot's files are written to, from what `ctr` prints of its mounts.

    Raises:
        ClusterError: there is none.
    """
    match = WRITABLE.search(mounts)
    if match is None:
        raise ClusterError(f"containerd names no writable folder of a snapshot: {mounts.strip()}")
    return Path(match[1])


def take(
    containerd: Sequence[str], image: LayeredImage, scratch: Path, find: Callable[[Path], Path] = lambda path: path
) -> None:
    """Give an image to a containerd whose storage is on the same file system; layers that it has are not touched.

    Args:
        containerd: the beginning of a `ctr` command.
        scratch: a folder for a small temporary file, which `ctr` finds under the same path.
        find: where a folder of this containerd is on this machine.

    Raises:
        CommandFailed: containerd refuses, or the files cannot be linked.
    """
    below: list[str] = []
    for identity, folder in zip(image.chain, image.layers, strict=True):
        if not has_snapshot(containerd, identity):
            draft = f"draft-{identity}"
            if has_snapshot(containerd, draft):
                run([*containerd, "snapshots", "remove", draft])
            mounts = run([*containerd, "snapshots", "prepare", f"--target={scratch}", draft, *below])
            run(
                ["cp", "--archive", "--link", f"{folder}/.", str(find(writable(mounts)))],
                deadline=deadlines.IMPORT_IMAGE,
            )
            run([*containerd, "snapshots", "commit", identity, draft])
        below = [identity]
    archive = scratch / "image.tar"
    write_layout(*layout(image.name, image.config.encode(), [EMPTY_TAR] * len(image.layers)), archive)
    run([*containerd, "images", "import", str(archive)], deadline=deadlines.IMPORT_IMAGE)
    archive.unlink()
    # From here on the image protects its layers, and they go with it.
    for identity in image.chain:
        run([*containerd, "snapshots", "label", identity, f"{PROTECTED}="])


def has_snapshot(containerd: Sequence[str], name: str) -> bool:
    """Whether a containerd, by the beginning of a `ctr` command, has a snapshot."""
    command = [*containerd, "snapshots", "info", name]
    return subprocess.run(command, capture_output=True, timeout=deadlines.COMMAND, check=False).returncode == 0
