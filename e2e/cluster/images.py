"""Images of a single static program, written as OCI archives without any daemon."""

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from .errors import ClusterError
from .tools import MODULE_OF, Tools

CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
NAMED = "io.containerd.image.name"
REFERENCE = "org.opencontainers.image.ref.name"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"


@dataclass(frozen=True, slots=True)
class StaticImage:
    """An image that holds one program: `name` is its name in pods, `path` the program's path in it."""

    name: str
    program: str
    path: str
    user: str = ""


PAUSE_IMAGE = StaticImage("localhost/omni-e2e/pause:1", "pause", "/pause")
COREDNS_IMAGE = StaticImage("localhost/omni-e2e/coredns:1", "coredns", "/coredns")
KUBERAY_IMAGE = StaticImage("localhost/omni-e2e/kuberay:1", "ray-operator", "/manager", "65532:65532")
INFRASTRUCTURE = (PAUSE_IMAGE, COREDNS_IMAGE, KUBERAY_IMAGE)


def entry(name: str, size: int, mode: int = 0o644) -> tarfile.TarInfo:
    """A file in an archive; without owner and time, so that the same content gives the same bytes."""
    info = tarfile.TarInfo(name)
    info.size = size
    info.mode = mode
    return info


def layer(files: Mapping[str, bytes], links: Mapping[str, str] = MappingProxyType({})) -> bytes:
    """A layer with executable files, and symbolic links to a target each, by their paths."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path, data in files.items():
            archive.addfile(entry(path.lstrip("/"), len(data), 0o755), io.BytesIO(data))
        for path, target in links.items():
            link = entry(path.lstrip("/"), 0)
            link.type = tarfile.SYMTYPE
            link.linkname = target
            archive.addfile(link)
    return buffer.getvalue()


def layout(
    name: str, config: bytes, layers: Sequence[bytes], types: tuple[str, str] = (CONFIG, LAYER)
) -> tuple[dict[str, bytes], dict[str, Any]]:
    """Blobs of an image by digest, and the index that names the image.

    Args:
        types: media types of the configuration and of the layers.
    """
    stored: dict[str, bytes] = {}

    def store(media: str, data: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        stored[digest] = data
        return {"mediaType": media, "digest": f"sha256:{digest}", "size": len(data)}

    packed = [store(types[1], content) for content in layers]
    manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": store(types[0], config), "layers": packed}
    top = store(MANIFEST, json.dumps(manifest).encode())
    named = {NAMED: name, REFERENCE: name.rpartition(":")[2]}
    return stored, {"schemaVersion": 2, "manifests": [{**top, "annotations": named}]}


def static_layout(
    image: StaticImage, program: bytes, architecture: str = "amd64"
) -> tuple[dict[str, bytes], dict[str, Any]]:
    """The layout of an image that holds one program."""
    packed = layer({image.path: program})
    run: dict[str, Any] = {"Entrypoint": [image.path], "WorkingDir": "/"}
    if image.user:
        run["User"] = image.user
    config = {
        "architecture": architecture,
        "os": "linux",
        "config": run,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(packed).hexdigest()}"]},
    }
    return layout(image.name, json.dumps(config).encode(), [packed])


def write_layout(stored: dict[str, bytes], index: dict[str, Any], target: Path) -> None:
    """Write a layout as an OCI archive; the file appears whole or not at all."""
    files = {
        "oci-layout": json.dumps({"imageLayoutVersion": "1.0.0"}).encode(),
        "index.json": json.dumps(index).encode(),
        **{f"blobs/sha256/{digest}": data for digest, data in stored.items()},
    }
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_suffix(".part")
    with tarfile.open(part, "w") as archive:
        for name, data in files.items():
            archive.addfile(entry(name, len(data)), io.BytesIO(data))
    part.rename(target)


def write_archive(image: StaticImage, program: bytes, target: Path, architecture: str = "amd64") -> None:
    """Write an image that holds one program as an OCI archive."""
    write_layout(*static_layout(image, program, architecture), target)


def names(archive: Path) -> list[str]:
    """The images in an archive of either kind, OCI or Docker.

    Raises:
        ClusterError: it cannot be read, or names none.
    """
    tags: list[str] = []
    try:
        with tarfile.open(archive) as file:
            inside = set(file.getnames())
            if "manifest.json" in inside:
                tags += [name for item in read(file, "manifest.json") for name in item["RepoTags"] or ()]
            if "index.json" in inside:
                described = [item.get("annotations", {}) for item in read(file, "index.json")["manifests"]]
                tags += [item[NAMED] for item in described if NAMED in item]
                tags += [item[REFERENCE] for item in described if NAMED not in item and REFERENCE in item]
    except (OSError, tarfile.TarError) as error:
        raise ClusterError(f"{archive} is no image archive: {error}") from error
    if not tags:
        raise ClusterError(f"{archive} names no image")
    return list(dict.fromkeys(tags))


def read(archive: tarfile.TarFile, name: str) -> Any:
    """A JSON file of an archive."""
    file = archive.extractfile(name)
    assert file is not None
    return json.load(file)


def infrastructure(tools: Tools, images: Sequence[StaticImage] = INFRASTRUCTURE) -> list[Path]:
    """Archives of the images that a cluster itself needs, next to the programs they hold."""
    archives = []
    for image in images:
        target = tools.root(MODULE_OF[image.program]) / "images" / f"{image.program}.tar"
        if not target.exists():
            write_archive(image, Path(tools.program(image.program)).read_bytes(), target, architecture())
        archives.append(target)
    return archives


def architecture() -> str:
    """The machine's architecture as images spell it."""
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
