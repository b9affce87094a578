"""The operator's metrics: promtool reports no problems, and a real Prometheus scrapes them."""

from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from e2e import dashboards, prometheus
from e2e.cluster import deadlines
from e2e.cluster.control_plane import ControlPlane
from e2e.cluster.errors import ToolMissing
from e2e.conftest import leave_out
from e2e.helm import CHART
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
    with operator(plane, tmp_path_factory.mktemp("scraped")) as started:
        yield started


@pytest.fixture
def job(plane: ControlPlane, running: RunningOperator, namespace: str) -> Iterator[JobOnPlane]:
    """A running job, so that every metric family of jobs has series."""
    with plane.api() as api:
        submitted = JobOnPlane(api, namespace)
        submitted.submit()
        submitted.run(1)
        submitted.await_condition("Ready", "True")
        yield submitted


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
        server.wait_until("a scrape", lambda: server.query('up{job="omni"} == 1') or None)
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


def test_dashboards_and_alert_rules_on_a_real_prometheus(
    programs: prometheus.Programs, running: RunningOperator, plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    """A job fails once and then reports a step; Prometheus scrapes it as the chart's PodMonitor says."""
    with plane.api() as api:
        job = JobOnPlane(api, namespace, "watched", spec={"backoffLimit": 3})
        job.run_and_lose_a_head()
        token = job.report_token(job.add_trainer(2))
        step = {
            "attempt": 2,
            "event": "step",
            "step": 3,
            "reward/mean": 0.25,
            "val/reward/mean": 0.25,
            "samples": 96,
            "weights/version": 3,
            "weights/min_replica_version": 3,
            "weights/max_replica_version": 3,
        }

        def reported() -> bool:
            url = f"http://127.0.0.1:{running.reports}/v1/reports"
            sent = {"Authorization": f"Bearer {token}"}
            return httpx2.post(url, json=step, headers=sent, timeout=30, trust_env=False).status_code == httpx2.codes.OK

        deadlines.wait_until("the operator to accept a report", deadlines.API_READY, reported)
        job.await_status("the step", lambda found: found.get("progress", {}).get("globalStep") == 3)
        values = {"namespace": namespace, "job": job.name, "__rate_interval": "1m"}
        with prometheus.scraping(
            programs,
            f"127.0.0.1:{running.http}",
            tmp_path,
            labels={"namespace": "omni-system", "pod": "operator-0"},
            honor_labels=True,
            rules=CHART / "monitoring" / "alerts.yaml",
        ) as server:
            of_operator = [query.with_values(values) for query in dashboards.queries("omni-operator")]
            of_job = [
                query.with_values(values)
                for query in dashboards.queries("omni-job")
                if query.expression.startswith(("diffusionrl_", "max by (type) (diffusionrl_"))
            ]
            assert len(of_operator) > 10 and len(of_job) > 3
            chosen = [choice.with_values(values) for choice in dashboards.choices("omni-job")]
            server.await_data([*of_operator, *of_job, *chosen])
            assert [sample["metric"] for sample in server.query(chosen[-1])] == [{"name": job.name}]
            assert server.query('diffusionrl_operator_leader{namespace="omni-system",pod="operator-0"}')
            assert not server.query('{exported_namespace!=""}'), "the job's namespace keeps its name"
            server.wait_until("the rules to be evaluated", lambda: set(server.rules().values()) == {"ok"})
            assert len(server.rules()) == 7
            assert not server.query('ALERTS{alertstate="firing"}'), "nothing is wrong with this job"
