"""Users of the cluster with the operator on it. Its tests run one after the other: each job has the CPU to itself."""

from collections.abc import Iterator

import pytest

from e2e.cluster.api import Api
from e2e.conftest import own_namespace
from e2e.system import System


@pytest.fixture
def api(system: System) -> Iterator[Api]:
    """A user of the cluster."""
    with system.cluster.api("e2e-training") as client:
        yield client


@pytest.fixture
def space(system: System, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of the test's own."""
    yield from own_namespace(system.cluster, request)
