"""An image as a folder, and a program run in it without a container: for tests of its permissions."""

import json
import os
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from e2e.cluster.layered import NodeImage
from e2e.cluster.processes import run

REMOVED = ".wh."


@dataclass(frozen=True, slots=True)
class Unpacked:
    """`config` is the image's: User, Env, Entrypoint and so on."""

    root: Path
    config: dict[str, Any]

    def runner(self, path: Path, variables: dict[str, str], mounted: dict[Path, str]) -> Path:
        """A script that runs its arguments as the image's program would run: its user, its environment, a read-only
        root, no capability, and these folders mounted. The process keeps its id, so signals reach it.

        Args:
            path: where to write the script.
            variables: environment variables to add to the image's and to the script's.
            mounted: mount points in the image by folder; folders are paths without symbolic links.
        """
        user, group = self.config["User"].split(":")
        image_variables = dict(item.split("=", maxsplit=1) for item in self.config["Env"])
        exports = [f"export {name}='{value}'" for name, value in {**image_variables, **variables}.items()]
        binds = [f"mount --bind '{source}' '{self.root}{target}'" for source, target in mounted.items()]
        inside = (
            f"exec setpriv --reuid={user} --regid={group} --clear-groups --no-new-privs "
            '--bounding-set=-all --inh-caps=-all -- "$@"'
        )
        lines = [
            "#!/bin/sh",
            "set -e",
            # In a separate mount namespace, which ends with the process.
            '[ "$1" = --inside ] || exec unshare --mount "$0" --inside "$@"',
            "shift",
            f"mount --bind '{self.root}' '{self.root}'",
            *binds,
            f"mount -o remount,bind,ro '{self.root}'",
            'chroot="$(PATH="$PATH:/usr/sbin:/sbin"; command -v chroot)"',
            "unset PYTHONPATH KUBECONFIG HOME",
            *exports,
            f"""exec "$chroot" '{self.root}' /bin/sh -c '{inside}' sh "$@" """,
        ]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        path.chmod(0o755)
        for target in mounted.values():
            mount_point = self.root / target.lstrip("/")
            assert mount_point.resolve().is_relative_to(self.root.resolve()), f"{target} leads out of the image"
            mount_point.mkdir(parents=True, exist_ok=True)
        return path


@contextmanager
def unpacked(image: NodeImage, folder: Path) -> Iterator[Unpacked]:
    """The image's files below `folder`. Owners are kept, so this needs root."""
    root = folder / "root"
    root.mkdir(parents=True)
    if isinstance(image, Path):
        yield unpack(image, root)
        return
    (folder / "upper").mkdir()
    (folder / "work").mkdir()
    # The kernel takes the uppermost layer first.
    lower = ":".join(str(layer) for layer in reversed(image.layers))
    run(
        [
            "mount",
            "-t",
            "overlay",
            "overlay",
            str(root),
            f"--options=lowerdir={lower},upperdir={folder / 'upper'},workdir={folder / 'work'}",
        ]
    )
    try:
        yield Unpacked(root, image.settings)
    finally:
        run(["umount", str(root)])


def unpack(archive: Path, target: Path) -> Unpacked:
    """Unpack an archive of one image, Docker's or OCI's, layer over layer."""
    with tarfile.open(archive) as outer:
        config, layers = _docker(outer) if "manifest.json" in outer.getnames() else _oci(outer)
        for name in layers:
            with tarfile.open(fileobj=_member(outer, name)) as layer:
                _apply(layer, target)
    return Unpacked(target, config["config"])


def _docker(archive: tarfile.TarFile) -> tuple[dict[str, Any], list[str]]:
    """The image's configuration, and the paths of its layers."""
    (described,) = json.load(_member(archive, "manifest.json"))
    return json.load(_member(archive, described["Config"])), described["Layers"]


def _oci(archive: tarfile.TarFile) -> tuple[dict[str, Any], list[str]]:
    """The same of an OCI layout."""
    (top,) = json.load(_member(archive, "index.json"))["manifests"]
    manifest = json.load(_member(archive, _blob(top)))
    return json.load(_member(archive, _blob(manifest["config"]))), [_blob(layer) for layer in manifest["layers"]]


def _blob(described: dict[str, Any]) -> str:
    return "blobs/" + described["digest"].replace(":", "/")


def _member(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    file = archive.extractfile(name)
    assert file is not None, name
    return file


def _apply(layer: tarfile.TarFile, target: Path) -> None:
    """Apply a layer to the files below it, with the removals that it records."""
    for item in layer:
        path = target / item.name
        if path.name.startswith(REMOVED):
            gone = path.with_name(path.name.removeprefix(REMOVED))
            shutil.rmtree(gone) if gone.is_dir() and not gone.is_symlink() else gone.unlink(missing_ok=True)
            continue
        if not item.isdir() and os.path.lexists(path):
            path.unlink()
        layer.extract(item, target, filter="fully_trusted")
