"""A custom resource definition that is older than the operator: the API server drops fields of the status."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from omni_operator.cluster.kinds import JOBS

WRITE = ("apply_status", JOBS.plural)


@pytest.fixture
def older(simulation: Any) -> Any:
    simulation.cluster.dropped = frozenset({"state", "reason", "warnings", "usage"})
    return simulation


def writes(simulation: Any) -> int:
    return simulation.cluster.log.count(WRITE)


async def test_an_idle_job_is_not_written(older: Any) -> None:
    await older.submit_running()
    before = writes(older)
    for _ in range(20):
        await older.after(60)
        await older.reconcile()
    assert writes(older) == before
    assert older.status().state is None


async def test_a_warning_is_written_once_and_is_one_event(older: Any) -> None:
    await older.submit_running()
    before = writes(older)
    older.report("warning", reason="SamplesCollapsed", message="all samples of a prompt are alike")
    await older.settle()
    for _ in range(20):
        await older.after(10)
    assert writes(older) - before <= 1
    assert older.event_reasons().count("SamplesCollapsed") == 1


async def test_the_job_ends_as_with_a_current_definition(older: Any) -> None:
    await older.submit_running(backoffLimit=1)
    older.end(1, "FAILED", "AppFailed", "boom")
    await older.after(120)
    older.run(2)
    await older.settle()
    older.start_operator()
    older.end(2)
    await older.after(60)
    assert older.condition("Succeeded").status == "True"
    assert [failure.attempt for failure in older.status().failures] == [1]


async def test_the_log_names_the_dropped_fields_once(older: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        await older.submit_running()
        await older.after(60)
    said = [record.getMessage() for record in caplog.records if "older than the operator" in record.getMessage()]
    assert len(said) == 1
    assert "status.reason, status.state" in said[0]
    assert "apply crds/" in said[0]


async def test_a_new_operator_writes_each_job_at_most_once(older: Any) -> None:
    await older.submit_running()
    older.start_operator()
    before = writes(older)
    for _ in range(5):
        await older.after(60)
    assert writes(older) - before <= 1
