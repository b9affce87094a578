"""docs/contribute/map.md names every folder and module at the top of both packages, and only paths that exist."""

import re
from pathlib import Path

from architecture.conftest import PACKAGES

FOLDERS = ("verl_omni", "operator", "tests", "e2e", "benchmarks", "charts", "docs")
CODE = re.compile(r"`([\w./{},*]+)`")
LINES = 160
# Paths in decisions that are not, or should not be, in the repository.
NOT_HERE = {"operator/__init__.py", "tests/operator", "setup_worker.py"}


def text(root: Path) -> str:
    return (root / "docs" / "contribute" / "map.md").read_text(encoding="utf-8")


def named(page: str) -> set[str]:
    """Paths and names in the text, with `{a,b}` written out."""
    names = set()
    for name in CODE.findall(page):
        inner = re.search(r"\{(.*?)\}", name)
        names |= {name.replace(inner[0], part) for part in inner[1].split(",")} if inner else {name}
    return names


def test_the_map_has_every_top_module(root: Path) -> None:
    names = {name.rstrip("/") for name in named(text(root))}
    names |= {name.split("/")[0] for name in names}
    for folder in PACKAGES.values():
        top = {path.name for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
        assert top - names - {"__init__.py"} == set(), folder.name


def missing(root: Path, paths: set[str]) -> set[str]:
    """Paths that are not the end of a file's or folder's."""
    existing = {path.relative_to(root).as_posix() for folder in FOLDERS for path in (root / folder).rglob("*")}
    existing |= set(FOLDERS)
    assert len(paths) > 40
    return {
        path for path in paths if not any(re.search(rf"(^|/){path.replace('*', '[^/]+')}$", file) for file in existing)
    }


def test_paths_on_the_map_exist(root: Path) -> None:
    paths = {name.rstrip("/") for name in named(text(root)) if "/" in name or name.endswith(".py")}
    assert missing(root, paths) == set()


def test_paths_in_decisions_and_in_contributing_exist(root: Path) -> None:
    pages = (*(root / "docs" / "adr").glob("*.md"), root / "CONTRIBUTING.md")
    names = named("\n".join(page.read_text(encoding="utf-8") for page in pages))
    begin = tuple(f"{folder}/" for folder in FOLDERS)
    ours = {name for name in names if name.endswith(".py") or name.startswith(begin)}
    paths = {name.rstrip("/") for name in ours if "NAME" not in name}
    assert missing(root, paths) == NOT_HERE


def test_the_map_is_short(root: Path) -> None:
    assert len(text(root).splitlines()) <= LINES
