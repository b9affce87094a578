"""The storage of buildah on the disk: where the layers of an image are."""

import json
from pathlib import Path

from e2e.cluster.errors import BuildFailed


def layers(storage: Path, name: str) -> tuple[Path, ...]:
    """Folders of an image's layers, the lowest first.

    Raises:
        BuildFailed: the storage has no such image, or is not in the format of buildah 1.28.
    """
    try:
        images = json.loads((storage / "overlay-images" / "images.json").read_text(encoding="utf-8"))
        known = json.loads((storage / "overlay-layers" / "layers.json").read_text(encoding="utf-8"))
        parents = {layer["id"]: layer.get("parent") for layer in known}
        top: str | None = next(image["layer"] for image in images if name in image.get("names", ()))
        folders: list[Path] = []
        while top is not None:
            folders.insert(0, storage / "overlay" / top / "diff")
            top = parents[top]
    except (OSError, KeyError, StopIteration, ValueError) as error:
        raise BuildFailed(f"the layers of {name} are not found in buildah's storage {storage}: {error!r}") from error
    return tuple(folders)
