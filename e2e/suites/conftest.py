"""An operator on the shared control plane, as most suites need it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e.cluster.api import Api
from e2e.cluster.control_plane import ControlPlane
from e2e.operator_process import RunningOperator, install, operator


@pytest.fixture(scope="module")
def installed(plane: ControlPlane) -> ControlPlane:
    """The control plane with the CRDs of the operator and of KubeRay."""
    install(plane)
    return plane


@pytest.fixture(scope="module")
def running(installed: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningOperator]:
    """An operator for the tests of a file."""
    with operator(installed, tmp_path_factory.mktemp("operator"), CANARY_SECONDS="600", RETRY_SECONDS="0.1") as made:
        yield made


@pytest.fixture
def api(installed: ControlPlane) -> Iterator[Api]:
    """A user of the control plane."""
    with installed.api() as made:
        yield made
