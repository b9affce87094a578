"""Locked sets of packages: images have the versions that tests run with."""

import importlib.util
import re
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
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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


def test_sets_with_another_verl_than_the_pinned_one_are_stale(lock: ModuleType, tmp_path: Path) -> None:
    """Without its pin, resolvers take verl 0.4.1, the last that any transformers satisfies."""
    assert "verl==" in " ".join(lock.pins(["train"]))
    for path in REQUIREMENTS.glob("*.txt"):
        text = path.read_text()
        (tmp_path / path.name).write_text(re.sub(r"^verl==\S+", "verl==0.4.1", text, flags=re.MULTILINE))
    assert lock.stale(tmp_path) == ["all.txt", "rollout.txt"]


def test_sets_of_other_overrides_are_stale(lock: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = tmp_path / "overrides.in"
    changed.write_text(lock.OVERRIDES.read_text() + "torch<2\n")
    monkeypatch.setattr(lock, "OVERRIDES", changed)
    assert lock.stale() == list(lock.SETS)


def test_every_override_says_why_and_until_when(lock: ModuleType) -> None:
    text = lock.OVERRIDES.read_text()
    assert (
        text.count("# Why: ") == text.count("# Until: ") == len([line for line in text.splitlines() if line[0] != "#"])
    )
