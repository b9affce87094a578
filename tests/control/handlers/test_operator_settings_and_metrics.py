"""Settings from environment variables, probes, and metrics of bounded cardinality."""

import asyncio
import re
import threading
from datetime import timedelta
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from omni_operator.api.status import Status
from omni_operator.cluster.cache.object_cache import ObjectCache
from omni_operator.cluster.kinds import JOBS, LEASES
from omni_operator.cluster.watch.watch_liveness import WatchLiveness
from omni_operator.handlers.http_server import probe_routes, serve
from omni_operator.metrics import JobMetrics, OperatorMetrics
from omni_operator.plan import ClusterSettings
from omni_operator.settings import SettingsError, from_environ
from omni_operator.status.reasons.table import reasons_shown


def test_settings_come_from_the_environment() -> None:
    settings = from_environ(
        {
            "OMNI_OPERATOR_NAMESPACES": "a, b",
            "OMNI_OPERATOR_IMAGE": "x:1",
            "OMNI_OPERATOR_STALL_SECONDS": "30",
            "OMNI_OPERATOR_RESOURCE_NAMES": "Ascend=huawei.com/npu",
            "HOSTNAME": "pod-1",
            "PATH": "/bin",
        },
        "system",
        7,
    )
    assert (settings.namespaces, settings.cluster.image, settings.instance) == (("a", "b"), "x:1", "pod-1_7")
    assert settings.timeouts.stall == timedelta(seconds=30)
    names = {"NVIDIA": "nvidia.com/gpu", "Ascend": "huawei.com/npu"}
    assert settings.cluster.resource_names == names
    in_file = ClusterSettings.model_validate({"resourceNames": {"Ascend": "huawei.com/npu"}})
    assert in_file.resource_names == names, "drl validate --settings reads them like the operator"
    assert (settings.namespace, settings.lease, settings.reports_url) == ("system", "omni-operator", None)


@pytest.mark.parametrize(
    ("address", "url"), [("10.0.0.7", "http://10.0.0.7:8090"), ("fd00::7", "http://[fd00::7]:8090")]
)
def test_other_replicas_reach_the_reports_of_a_replica_at_its_address(address: str, url: str) -> None:
    assert from_environ({"OMNI_OPERATOR_ADDRESS": address}, "system").reports_url == url


def test_all_invalid_variables_are_named_in_one_error() -> None:
    wrong = {
        "OMNI_OPERATOR_HTTP_PORT": "eighty",
        "OMNI_OPERATOR_RESYNC_SECONDS": "0",
        "OMNI_OPERATOR_IMAGES": "x",
        "OMNI_OPERATOR_RESOURCE_NAMES": "NVIDIA",
        "OMNI_OPERATOR_VERBOSE": "maybe",
        "OMNI_OPERATOR_LOG_FORMAT": "xml",
        "OMNI_OPERATOR_LEASE_SECONDS": "2",
        "OMNI_OPERATOR_LEASE": "My Lease",
        "OMNI_OPERATOR_ADDRESS": "pod-1",
        "OMNI_OPERATOR_POD_POLICY": '{"privilege": true, "volumeTypes": ["secret"]}',
        "OMNI_OPERATOR_PASSES": "0",
        "OMNI_OPERATOR_STALL_SECONDS": "9" * 20,
        "OMNI_OPERATOR_REPORTS_PORT": "65536",
    }
    with pytest.raises(SettingsError) as caught:
        from_environ(wrong, "system")
    for name in wrong:
        assert name in str(caught.value)
    assert "privilege: unknown field; did you mean 'privileged'?" in str(caught.value)
    with pytest.raises(SettingsError, match=r"OMNI_OPERATOR_RESOURCE_NAMES='AMD=amd\.com/gpu': .*'AMD' is not one of"):
        from_environ({"OMNI_OPERATOR_RESOURCE_NAMES": "AMD=amd.com/gpu"}, "system")
    assert "OMNI_OPERATOR_IMAGE," in str(caught.value)  # the list of known variables


def job(number: int, **status: Any) -> dict[str, Any]:
    meta = {"namespace": "ns", "name": f"job-{number}", "uid": f"u{number}", "resourceVersion": "1"}
    return {"apiVersion": JOBS.api_version, "kind": JOBS.kind, "metadata": meta, "spec": {}, "status": status}


def page_of(cache: ObjectCache, shown: int) -> tuple[str, dict[str, list[Any]]]:
    metrics = OperatorMetrics(JobMetrics(cache, shown))
    metrics.requested("apply", "rayjobs", 200, 0.01)
    metrics.passed("ok", 0.001)
    metrics.reported("taken")
    metrics.failed("HeadLost")
    text = asyncio.run(metrics.page()).decode()
    return text, {family.name: family.samples for family in text_string_to_metric_families(text)}


def test_series_of_a_job_disappear_when_it_is_deleted() -> None:
    cache = ObjectCache()
    status = {
        "conditions": [{"type": "Ready", "status": "True", "reason": "x"}],
        "state": "Running",
        "progress": {"globalStep": 4, "reward": 0.5},
        "weights": {"trainerVersion": 4, "lag": 0},
        "usage": {"acceleratorSeconds": 12.0, "samples": 32},
    }
    cache.put(JOBS, job(1, **status))
    _, families = page_of(cache, 10)
    ready = [s for s in families["diffusionrl_job_condition"] if s.labels["type"] == "Ready" and s.value]
    assert [sample.labels["status"] for sample in ready] == ["True"]
    assert families["diffusionrl_job_step"][0].value == 4
    assert families["diffusionrl_job_samples"][0].value == 32
    assert {s.labels["state"]: s.value for s in families["diffusionrl_jobs"]}["Running"] == 1
    cache.remove(JOBS, job(1))
    text, _ = page_of(cache, 10)
    assert "job-1" not in text


def test_the_number_of_series_is_bounded_and_running_jobs_come_first() -> None:
    cache = ObjectCache()
    for number in range(30):
        running = {"state": "Running"} if number >= 25 else {}
        cache.put(JOBS, job(number, **running))
    text, families = page_of(cache, 5)
    assert families["diffusionrl_jobs_not_shown"][0].value == 25
    assert {s.labels["name"] for s in families["diffusionrl_job_info"]} == {f"job-{n}" for n in range(25, 30)}
    assert len(re.findall(r"^diffusionrl_job_", text, re.MULTILINE)) < 5 * 60


def test_beyond_the_limit_the_newest_failures_are_shown_before_any_success() -> None:
    cache = ObjectCache()
    for number in range(8):
        # By their names, the successes come first, and the older failures before the newer ones.
        ended = {"completionTime": f"2026-01-01T00:00:{(number * 3) % 8:02d}Z"}
        status = {"conditions": [{"type": "Failed" if number >= 4 else "Succeeded", "status": "True", "reason": "x"}]}
        cache.put(JOBS, job(number, **status, **ended))
    cache.put(JOBS, job(8, conditions=[{"type": "Failed", "status": "True", "reason": "x"}], completionTime="soon"))
    cache.put(JOBS, job(9, state="Running"))
    cache.put(JOBS, job(91, state="Queued"))
    shown = []
    for limit in range(1, 12):
        _, families = page_of(cache, limit)
        (new,) = {sample.labels["name"] for sample in families["diffusionrl_job_info"]} - set(shown)
        shown.append(new)
    failed = ["job-5", "job-7", "job-4", "job-6", "job-8"]
    succeeded = ["job-2", "job-1", "job-3", "job-0"]
    ends = {number: (number * 3) % 8 for number in range(8)}
    assert [ends[int(name[-1])] for name in failed[:4]] == [7, 5, 4, 2]
    assert shown == ["job-9", "job-91", *failed, *succeeded]


async def test_only_the_replica_that_leads_has_metrics_of_jobs() -> None:
    cache = ObjectCache()
    leads = [False]
    cache.put(JOBS, job(1))
    metrics = OperatorMetrics(JobMetrics(cache, 5))
    metrics.follow(lambda: 0, lambda: 0, lambda: leads[0])
    page = (await metrics.page()).decode()
    assert "diffusionrl_operator_leader 0.0" in page
    assert "diffusionrl_job" not in page
    leads[0] = True
    page = (await metrics.page()).decode()
    assert "diffusionrl_operator_leader 1.0" in page
    assert 'diffusionrl_job_info{name="job-1"' in page


async def test_the_event_loop_parses_no_status_for_a_scrape(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = ObjectCache()
    threads = []
    for number in range(30):
        cache.put(JOBS, job(number, state="Running"))

    def recorded(body: dict[str, Any]) -> Status:
        threads.append(threading.current_thread())
        return Status.model_validate(body["status"])

    monkeypatch.setattr("omni_operator.metrics._status_of", recorded)
    await OperatorMetrics(JobMetrics(cache, 5)).page()
    assert len(threads) == 5
    assert threading.main_thread() not in threads


async def test_every_reason_has_a_series_before_the_first_failure() -> None:
    """Prometheus' `increase` of a series that begins with its first failure is 0."""
    metrics = OperatorMetrics()
    name = "diffusionrl_operator_attempts_failed_total"

    async def failures() -> dict[str, float]:
        page = text_string_to_metric_families((await metrics.page()).decode())
        return {
            sample.labels["reason"]: sample.value for family in page for sample in family.samples if sample.name == name
        }

    before = await failures()
    assert before == dict.fromkeys(reasons_shown("failure"), 0.0)
    metrics.failed("HeadLost")
    assert await failures() == {**before, "HeadLost": 1.0}


async def test_probes_reflect_the_liveness_of_the_watch() -> None:
    liveness = WatchLiveness(60.0)
    at = [0.0]
    async with (
        serve(probe_routes(liveness, OperatorMetrics(), lambda: at[0]), 0, host="127.0.0.1") as port,
        aiohttp.ClientSession() as session,
    ):

        async def code(path: str) -> int:
            async with session.get(f"http://127.0.0.1:{port}{path}") as response:
                return response.status

        assert (await code("/readyz"), await code("/healthz")) == (503, 200)
        liveness.ready = True
        lease = {"metadata": {"namespace": "ns", "name": "canary", "resourceVersion": "5"}}
        liveness.expect(LEASES, lease, 0.0)
        assert (await code("/readyz"), await code("/healthz")) == (200, 200)
        at[0] = 61.0
        assert await code("/healthz") == 503
        liveness.confirm(LEASES, lease)
        assert await code("/healthz") == 200
        assert await code("/metrics") == 200
