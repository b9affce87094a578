"""The operator's metrics: promtool reports no problems, and a real Prometheus scrapes them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e import prometheus
from e2e.cluster import deadlines
from e2e.cluster.control_plane import ControlPlane
from e2e.cluster.errors import ToolMissing
from e2e.conftest import leave_out
from e2e.jobs import JobOnPlane
from e2e.operator_process import RunningOperator, install, operator

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def programs() -> prometheus.Programs:
    try:
        return prometheus.ensure()
    except ToolMissing as error:
        leave_out(error)
        raise


@pytest.fixture(scope="module")
def running(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningOperator]:
    install(plane)
    with operator(plane, tmp_path_factory.mktemp("scraped")) as made:
        yield made


@pytest.fixture
def job(plane: ControlPlane, running: RunningOperator, namespace: str) -> Iterator[JobOnPlane]:
    """A running job, so that every metric family of jobs has series."""
    with plane.api() as api:
        made = JobOnPlane(api, namespace)
        made.submit()
        made.run(1)
        made.await_condition("Ready", "True")
        yield made


def test_promtool_reports_no_problems(programs: prometheus.Programs, running: RunningOperator, job: JobOnPlane) -> None:
    page = running.page("/metrics").text
    assert f'name="{job.name}"' in page
    assert programs.check(page) == ""
    # It does report problems:
    assert "no help text" in programs.check("nameless_total 1\n")


def test_a_real_prometheus_scrapes_it(
    programs: prometheus.Programs, running: RunningOperator, job: JobOnPlane, tmp_path: Path
) -> None:
    label = f'{{namespace="{job.namespace}",name="{job.name}"}}'
    with prometheus.scraping(programs, f"127.0.0.1:{running.http}", tmp_path) as server:
        deadlines.wait_until("a scrape", prometheus.SCRAPED_S, lambda: server.query('up{job="omni"} == 1'))
        assert server.await_value(f"diffusionrl_job_attempts{label}") == 1
        ready = f'diffusionrl_job_condition{{namespace="{job.namespace}",type="Ready",status="True"}}'
        assert server.await_value(ready) == 1
        assert (
            server.await_value('diffusionrl_operator_api_requests_total{verb="create",resource="rayjobs",code="201"}')
            >= 1
        )
        assert server.await_value("sum(diffusionrl_operator_reconcile_seconds_count)") >= 1
        assert server.await_value("time() - max(diffusionrl_operator_watch_last_event_timestamp_seconds)") < 600
        assert server.query("diffusionrl_jobs{state='Running'} >= 1")
