"""A clock that jumps by an hour, forwards and back, in a running operator on a real API server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from e2e.cluster import deadlines
from e2e.cluster.api import Api
from e2e.cluster.control_plane import ControlPlane
from e2e.jobs import JOB_SEEN, JobOnPlane
from e2e.operator_process import RunningOperator, operator
from e2e.shifted_clock import ShiftedClock, shifted_clock

pytestmark = pytest.mark.cluster
HOUR = 3600
# Each job has a pass every half second, so the first one after a jump does not wait for an event.
SETTINGS = {"RESYNC_SECONDS": "0.5", "RETRY_SECONDS": "5"}


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ShiftedClock:
    made = shifted_clock(tmp_path)
    monkeypatch.setenv("OPERATOR_PYTHON", str(made.python))
    return made


@pytest.fixture
def running(installed: ControlPlane, namespace: str, tmp_path: Path, clock: ShiftedClock) -> Iterator[RunningOperator]:
    """An operator with the clock, for the test's namespace."""
    with operator(installed, tmp_path, NAMESPACES=namespace, **SETTINGS) as made:
        yield made
        assert "does not lead any more" not in made.log.read_text(encoding="utf-8")
        assert made.page("/healthz").status_code == 200


def await_passes(running: RunningOperator, count: int) -> None:
    """Wait for as many passes more."""

    def made() -> float:
        families = text_string_to_metric_families(running.page("/metrics").text)
        samples = (sample for family in families for sample in family.samples)
        return sum(one.value for one in samples if one.name == "diffusionrl_operator_reconcile_seconds_count")

    enough = made() + count
    deadlines.wait_until(f"{count} passes", JOB_SEEN, lambda: made() >= enough)


def test_a_clock_that_jumps_ends_only_jobs_whose_time_is_over_by_it(
    running: RunningOperator, api: Api, namespace: str, clock: ShiftedClock
) -> None:
    within = {"activeDeadlineSeconds": 2 * HOUR, "ttlSecondsAfterFinished": 2 * HOUR, "backoffLimit": 0}
    beyond = {"activeDeadlineSeconds": HOUR // 2, "ttlSecondsAfterFinished": HOUR // 2, "backoffLimit": 0}
    runs, ended = JobOnPlane(api, namespace, "runs", within), JobOnPlane(api, namespace, "ended", within)
    late, expired = JobOnPlane(api, namespace, "late", beyond), JobOnPlane(api, namespace, "expired", beyond)
    for job in (runs, ended, late, expired):
        job.start()
    for job in (ended, expired):
        job.end(1)
        job.await_condition("Succeeded", "True")

    clock.shift(-HOUR)
    await_passes(running, 12)
    for job in (runs, late):
        assert job.condition("Ready")["status"] == "True"
    for job in (ended, expired):
        assert job.condition("Succeeded")["status"] == "True"

    clock.shift(HOUR)
    late.await_condition("Failed", "True", "DeadlineExceeded")
    expired.await_gone()
    await_passes(running, 12)
    clock.shift(0)
    await_passes(running, 12)
    assert (runs.status()["attempts"], runs.status().get("failures", [])) == (1, [])
    assert runs.condition("Ready")["status"] == "True"
    assert ended.condition("Succeeded")["status"] == "True"
    runs.end(1)
    runs.await_condition("Succeeded", "True")


def test_a_clock_that_is_set_back_makes_no_pause_longer(
    running: RunningOperator, api: Api, namespace: str, clock: ShiftedClock
) -> None:
    """Pauses that begin while it is ahead: after a failure, and after a refusal."""
    failed, refused = JobOnPlane(api, namespace, "failed", {"backoffLimit": 1}), JobOnPlane(api, namespace, "refused")
    clock.shift(HOUR)
    failed.start()
    failed.head(1, "False", "HeadPodNotFound")
    failed.await_status("the failure", lambda status: bool(status.get("failures")))
    clock.shift(0)
    failed.await_attempt(2)

    quotas = f"/api/v1/namespaces/{namespace}/resourcequotas"
    api.post(quotas, {"metadata": {"name": "none"}, "spec": {"hard": {"count/rayjobs.ray.io": "0"}}})
    deadlines.wait_until(
        "the quota to be counted", deadlines.API_READY, lambda: "hard" in api.get(f"{quotas}/none").get("status", {})
    )
    clock.shift(HOUR)
    refused.submit()
    refused.await_condition("Ready", "False", "QuotaExceeded")
    clock.shift(0)
    api.delete(f"{quotas}/none")
    refused.await_attempt(1)
