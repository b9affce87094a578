"""Jobs and pod templates for tests of `api` and `plan`; `e2e` loads the same files."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def documents() -> ModuleType:
    """The strategies of `job_documents.py`."""
    return _load(HERE / "api" / "job_documents.py")


@pytest.fixture(scope="session")
def templates() -> ModuleType:
    """The tables of `templates_and_policies.py`."""
    return _load(HERE / "plan" / "templates_and_policies.py")


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
