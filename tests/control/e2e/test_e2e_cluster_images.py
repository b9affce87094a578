"""Images of clusters: archives, layers, and the images that a node has; without a cluster."""

from __future__ import annotations

import gzip
import io
import json
import shutil
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from e2e.cluster.bare.store import ZSTD, ImageStore, Known, fingerprint, load, outdated, refuse_full, replaced, room
from e2e.cluster.errors import ClusterError
from e2e.cluster.images import StaticImage, entry, names, write_archive
from e2e.cluster.layered import LayeredImage


def test_only_new_and_changed_archives_are_unpacked(tmp_path: Path) -> None:
    old, changed, new = (tmp_path / name for name in ("old", "changed", "new"))
    for path in (old, changed, new):
        write_archive(StaticImage(f"localhost/{path.name}:1", "p", "/p"), b"program", path)
    known = {"localhost/old:1": fingerprint(old), "localhost/changed:1": "other"}
    assert outdated([old, changed, new], known) == [changed, new]
    store = ImageStore(tmp_path / "store")
    assert store.known.read() == {}
    store.add([], print)
    assert not store.folder.exists()


def test_an_image_replaced_by_another_archive_is_unpacked_again(tmp_path: Path) -> None:
    """Two checkouts with different versions build different images of one name."""
    image = StaticImage("localhost/same:1", "p", "/p")
    one = tmp_path / "one"
    other = tmp_path / "other"
    write_archive(image, b"program", one)
    write_archive(image, b"another program", other)
    known = {"localhost/same:1": fingerprint(one)}
    assert outdated([one], known) == []
    known |= {name: fingerprint(other) for name in names(other)}
    assert outdated([one], known) == [one]


def test_a_node_does_not_take_an_archive_that_it_has(tmp_path: Path) -> None:
    archive = tmp_path / "a.tar"
    known = Known(tmp_path / "known.json")
    write_archive(StaticImage("localhost/a:1", "p", "/p"), b"program", archive)
    known.add(archive)
    assert known.read() == {"localhost/a:1": fingerprint(archive)}
    load(tmp_path / "no-containerd-here.sock", known, archive)


def layered(target: Path, layers: dict[str, bytes]) -> Path:
    with tarfile.open(target, "w") as file:
        for name, data in layers.items():
            file.addfile(entry(name, len(data)), io.BytesIO(data))
    return target


@pytest.mark.parametrize("packed", [gzip.compress(b"x" * 1000), ZSTD + b"x" * 1000], ids=["gzip", "zstd"])
def test_only_layers_that_are_new_take_room(tmp_path: Path, packed: bytes) -> None:
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    (blobs / "aa").touch()
    plain = b"x" * 1000
    docker = layered(tmp_path / "docker.tar", {"aa.tar": plain, "bb.tar": plain})
    assert room(docker, blobs) == 2 * 1000
    oci = layered(tmp_path / "oci.tar", {"blobs/sha256/aa": plain, "blobs/sha256/cc": packed})
    assert room(oci, blobs) == 4 * len(packed)


def test_a_full_disk_is_reported_before_unpacking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = layered(tmp_path / "large.tar", {"aa.tar": b"x" * 4096})
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=8191))
    with pytest.raises(ClusterError, match=r"unpacking large\.tar needs 0\.0 GiB"):
        refuse_full(tmp_path, [archive], tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=8192))
    refuse_full(tmp_path, [archive], tmp_path)


def test_earlier_builds_of_an_image_are_removed(tmp_path: Path) -> None:
    archive = tmp_path / "a.tar"
    write_archive(StaticImage("localhost:5000/a:2", "p", "/p"), b"program", archive)
    known = ["localhost:5000/a:1", "localhost:5000/a:2", "localhost:5000/ab:1", "localhost/a:1"]
    assert replaced([archive], known) == ["localhost:5000/a:1"]


def layered_image(config: dict[str, Any], count: int) -> LayeredImage:
    return LayeredImage(
        "localhost/a:1", json.dumps(config), tuple(Path(f"/layers/{number}") for number in range(count))
    )


def test_layers_on_the_disk_take_no_room_and_are_known_by_their_configuration(tmp_path: Path) -> None:
    image = layered_image({"config": {"User": "1:1"}, "rootfs": {"diff_ids": ["sha256:aa"]}}, 1)
    known = Known(tmp_path / "known.json")
    assert image.settings == {"User": "1:1"} and outdated([image], known.read()) == [image]
    known.add(image)
    assert outdated([image], known.read()) == []
    other = layered_image({"config": {"User": "2:2"}, "rootfs": {"diff_ids": ["sha256:aa"]}}, 1)
    assert outdated([other], known.read()) == [other]
    refuse_full(tmp_path, [image], tmp_path / "blobs")
