"""A copy of the files that a release reads and changes, so that a test can release versions."""

import shutil
from pathlib import Path

from e2e.images.catalog import ROOT


def copy_tree(target: Path) -> Path:
    """The copy, in a new folder, with one fragment for the changelog."""
    target.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"):
        shutil.copy(ROOT / name, target)
    for name in ("charts", "crds", "operator", "verl_omni", "requirements"):
        shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
    # Right after a release there are no fragments.
    (target / "changelog.d").mkdir()
    add_fragment(target)
    return target


def add_fragment(tree: Path) -> None:
    """A change for the next release."""
    (tree / "changelog.d" / "something.added.md").write_text("Something new.\n")
