"""The cache of tests: shared files are counted once, and unused entries are removed."""

import os
from pathlib import Path

import pytest

from e2e import cache
from e2e.cluster.errors import ClusterError
from e2e.cluster.tools import GO


def filled(path: Path, size: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(os.urandom(size))
    return path


def test_sources_and_old_versions_are_removed_and_the_rest_stays(tmp_path: Path) -> None:
    now = 1e9
    names = [GO, "archives", "images", "a" * 16, "b" * 16]
    for name in names:
        filled(tmp_path / name / "file", 10)
        os.utime(tmp_path / name, (now, now))
    os.utime(tmp_path / ("a" * 16), (now - 8 * 86400,) * 2)
    lines: list[str] = []
    cache.prune(tmp_path, lines.append, lambda: now)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["archives", "images", "b" * 16])
    assert [line.split(":")[0] for line in lines] == [f"removing {tmp_path / name}" for name in (GO, "a" * 16)]


def test_used_versions_stay_however_old(tmp_path: Path) -> None:
    filled(tmp_path / ("c" * 16) / "file", 10)
    os.utime(tmp_path / ("c" * 16), (0, 0))
    assert cache.outdated(tmp_path, {"c" * 16}, 1e9) == []
    assert cache.outdated(tmp_path, set(), 1e9) == [tmp_path / ("c" * 16)]


def test_the_cache_of_a_running_cluster_is_not_removed(tmp_path: Path) -> None:
    base = tmp_path / "cache"
    filled(base / "omni0" / "cluster.json", 1)
    with pytest.raises(ClusterError, match="the nodes one, two use the cache: make cluster-down"):
        cache.clean(base, ["one", "two"], lambda text: None)
    cache.clean(base, [], lambda text: None)
    assert not base.exists()
