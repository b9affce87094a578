"""An operator on the shared control plane, as most suites need it; Helm and an empty control plane for the chart's."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e import helm
from e2e.cluster.api import Api
from e2e.cluster.control_plane import ControlPlane, control_plane
from e2e.cluster.errors import ToolMissing
from e2e.conftest import leave_out
from e2e.operator_process import RunningOperator, install, operator


@pytest.fixture(scope="module")
def installed(plane: ControlPlane) -> ControlPlane:
    """The control plane with the CRDs of the operator and of KubeRay."""
    install(plane)
    return plane


@pytest.fixture(scope="module")
def running(installed: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningOperator]:
    """An operator for the tests of a file."""
    with operator(installed, tmp_path_factory.mktemp("operator"), CANARY_SECONDS="600", RETRY_SECONDS="0.1") as started:
        yield started


@pytest.fixture
def api(installed: ControlPlane) -> Iterator[Api]:
    """A user of the control plane."""
    with installed.api() as client:
        yield client


@pytest.fixture(scope="session")
def program() -> Path:
    """Helm."""
    try:
        return helm.helm()
    except ToolMissing as error:
        leave_out(error)


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[ControlPlane]:
    """A control plane for one test, without any custom resource."""
    try:
        with control_plane({"node-0": {}}, parent=tmp_path) as running:
            yield running
    except ToolMissing as error:
        leave_out(error)
