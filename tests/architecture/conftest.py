"""Fixtures: the committed files, parsed once."""

from __future__ import annotations

import ast
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
def modules() -> list[Module]:
    """Every module of both packages."""
    modules = []
    for folder in PACKAGES.values():
        for path in sorted(folder.rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            modules.append(Module(path.relative_to(ROOT).as_posix(), len(text.splitlines()), ast.parse(text)))
    assert modules
    return modules
