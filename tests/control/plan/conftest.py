"""Jobs for tests of rendering."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from control.api.small_job import GOOD
from omni_operator.api import DiffusionRLJob, read_job


@pytest.fixture
def make_job() -> Callable[..., DiffusionRLJob]:
    """The smallest job with assignments, as `drl --set` takes them."""
    return lambda *assignments: read_job(GOOD, "job.yaml", assignments).job
