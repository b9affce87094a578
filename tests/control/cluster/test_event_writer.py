"""Events that cannot be created: what the log says."""

from datetime import UTC, datetime
from typing import Any

import pytest

from omni_operator.cluster.errors import ClusterError, Forbidden, NamespaceTerminating
from omni_operator.cluster.event_writer import EventWriter
from omni_operator.status.report.events import Event

JOB = {
    "apiVersion": "diffusionrl.io/v1alpha1",
    "kind": "DiffusionRLJob",
    "metadata": {"name": "red", "namespace": "ns", "uid": "u"},
}


class Refusing:
    """A cluster that refuses every object."""

    def __init__(self, error: ClusterError) -> None:
        self._error = error

    async def create(self, body: Any) -> Any:
        raise self._error


@pytest.mark.parametrize(
    ("error", "logged"),
    [(NamespaceTerminating("being terminated"), []), (Forbidden("no right"), ["ns/red: event Failed not created"])],
)
async def test_a_namespace_that_is_being_deleted_fills_no_log(
    error: ClusterError, logged: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    cluster: Any = Refusing(error)
    event = Event("Warning", "Failed", "attempt 1", "f1")
    await EventWriter(cluster, "operator-1").create(JOB, event, datetime(2026, 1, 1, tzinfo=UTC))
    assert [record.getMessage().rpartition(": ")[0] for record in caplog.records] == logged
