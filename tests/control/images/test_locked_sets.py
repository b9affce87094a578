"""The locked sets: those of images have the versions that tests run with."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from types import ModuleType

import pytest

from e2e.images.catalog import ROOT

REQUIREMENTS = ROOT / "requirements"


@pytest.fixture
def lock() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lock", REQUIREMENTS / "lock.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("aiohttp==", "aiohttp==1"),
        ("# pyproject.toml: ", "# pyproject.toml: 0"),
        ("aiohttp==", "# file://wheels\naiohttp=="),
    ],
    ids=["another version than in tests", "another pyproject.toml", "an address"],
)
def test_a_set_of_an_image_that_was_changed_alone_is_stale(
    lock: ModuleType, tmp_path: Path, old: str, new: str
) -> None:
    for path in REQUIREMENTS.glob("*.txt"):
        shutil.copy(path, tmp_path)
    assert lock.stale(tmp_path) == []
    changed = tmp_path / "operator.txt"
    changed.write_text(changed.read_text().replace(old, new, 1))
    assert lock.stale(tmp_path) == ["operator.txt"]
    changed.unlink()
    assert lock.stale(tmp_path) == ["operator.txt"]
