"""Fixtures: the committed files, parsed once."""

import ast
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"verl_omni": ROOT / "verl_omni", "omni_operator": ROOT / "operator" / "omni_operator"}


@dataclass(frozen=True, slots=True)
class Module:
    """A module of one of the two packages; `path` is relative to the root of the repository."""

    path: str
    lines: int
    tree: ast.Module

    @property
    def name(self) -> str:
        """The dotted name it is imported by."""
        parts = self.path.removeprefix("operator/").removesuffix(".py").split("/")
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@pytest.fixture(scope="session")
def root() -> Path:
    """Root of the repository."""
    return ROOT


@pytest.fixture(scope="session")
def texts(root: Path) -> dict[str, str]:
    """Committed text files, by path."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout: what is committed cannot be told")
    texts = {}
    for name in listed.stdout.decode().split("\0"):
        path = root / name
        if name and path.is_file() and b"\0" not in (data := path.read_bytes())[:8192]:
            texts[name] = data.decode("utf-8")
    return texts


@pytest.fixture(scope="session")
def modules() -> list[Module]:
    """Every module of both packages."""
    modules = []
    for folder in PACKAGES.values():
        for path in sorted(folder.rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            modules.append(Module(path.relative_to(ROOT).as_posix(), len(text.splitlines()), ast.parse(text)))
    assert modules
    return modules
