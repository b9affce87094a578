"""Documents of jobs, for tests of `api` and `plan`; `e2e` loads the same file."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def documents() -> ModuleType:
    """The strategies of `job_documents.py`."""
    spec = importlib.util.spec_from_file_location("job_documents", Path(__file__).with_name("api") / "job_documents.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
