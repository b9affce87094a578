"""Jobs for tests of rendering."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from omni_operator.api import DiffusionRLJob, read_job

BASE = """
apiVersion: diffusionrl.io/v1alpha1
kind: DiffusionRLJob
metadata: {name: a-job}
spec:
  model: {base: ./model}
  data: {train: [t.jsonl]}
  reward: {scorers: [{name: jpeg}]}
  trainer: {totalSteps: 3}
"""


@pytest.fixture
def make_job() -> Callable[..., DiffusionRLJob]:
    """The smallest job with assignments, as `drl --set` takes them."""
    return lambda *assignments: read_job(BASE, "job.yaml", assignments).job


@pytest.fixture(scope="session")
def documents() -> ModuleType:
    """The strategies of `tests/control/api/job_documents.py`."""
    path = Path(__file__).parents[1] / "api" / "job_documents.py"
    spec = importlib.util.spec_from_file_location("job_documents", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
