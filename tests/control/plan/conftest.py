"""Jobs for tests of rendering."""

from __future__ import annotations

from collections.abc import Callable

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
