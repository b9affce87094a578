"""Faults of the API server, of other parts of the cluster and of users, on a real API server."""

import copy
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster import deadlines
from e2e.cluster.api import Api, ApiError
from e2e.cluster.control_plane import ControlPlane
from e2e.fault_proxy import Call, FaultProxy, fault_proxy
from e2e.jobs import JOB_SEEN, JobOnPlane
from e2e.operator_process import RunningOperator, install_kuberay, is_served, operator

pytestmark = pytest.mark.cluster
QUICK = {"RETRY_SECONDS": "0.1"}
FROZEN_SECONDS = 8.0
STOPPED = 90.0  # a request of the operator ends after 30 s
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@pytest.fixture
def proxy(installed: ControlPlane) -> Iterator[FaultProxy]:
    with fault_proxy(installed) as started:
        yield started


def rayjobs(job: JobOnPlane) -> list[str]:
    return [body["metadata"]["name"] for body in job.api.get(job.ray("rayjobs"))["items"]]


def test_an_operator_that_is_killed_at_a_write_leaves_the_rest_to_the_next_one(
    installed: ControlPlane, api: Api, namespace: str, tmp_path: Path, proxy: FaultProxy
) -> None:
    """SIGKILL when the API server has carried out the write; the operator does not get the answer."""
    job = JobOnPlane(api, namespace, spec={"backoffLimit": 1})
    points = [("rayjobs", "-a01", job.submit), ("/status", "", lambda: job.run(1))]
    points.append(("rayjobs", "-a01", lambda: job.head(1, "False", "HeadPodNotFound")))
    for kind, name, act in points:
        with operator(installed, tmp_path, proxy.kubeconfig(tmp_path), NAMESPACES=namespace, **QUICK) as running:

            def kill(call: Call, kind: str = kind, name: str = name, pid: int = running.process.pid) -> None:
                if call.writes and kind in call.path and (call.path.endswith(name) or name.encode() in call.body):
                    os.kill(pid, signal.SIGKILL)

            proxy.answered = kill
            act()
            running.process.wait(JOB_SEEN)
        assert running.process.returncode == -signal.SIGKILL
        proxy.answered = lambda call: None
    with operator(installed, tmp_path, proxy.kubeconfig(tmp_path), NAMESPACES=namespace, **QUICK):
        job.run(2)
        job.await_condition("Ready", "True")
        assert rayjobs(job) == [job.attempt(2)]
        job.end(2)
        job.await_condition("Succeeded", "True")
    status = job.status()
    assert (status["attempts"], [item["reason"] for item in status["failures"]]) == (2, ["HeadLost"])


@pytest.mark.parametrize(("code", "after"), [(429, 1), (500, 0), (503, 1)])
def test_errors_of_the_api_server_delay_a_job(
    installed: ControlPlane, api: Api, namespace: str, tmp_path: Path, proxy: FaultProxy, code: int, after: int
) -> None:
    with operator(installed, tmp_path, proxy.kubeconfig(tmp_path), NAMESPACES=namespace, **QUICK) as running:
        seen: set[str] = set()

        def once(call: Call) -> tuple[int, int] | None:
            """The first write of each RayJob and of each status."""
            if not call.writes or not ("rayjobs" in call.path or "/status" in call.path) or call.path in seen:
                return None
            seen.add(call.path)
            return code, after

        proxy.answer = once
        job = JobOnPlane(api, namespace)
        job.start()
        assert rayjobs(job) == [job.attempt(1)]
        assert len(proxy.refused) == len(seen) == 2
        assert running.page("/healthz").status_code == 200


def test_an_api_server_that_goes_away_and_comes_back(
    installed: ControlPlane, api: Api, namespace: str, tmp_path: Path, proxy: FaultProxy
) -> None:
    """Nothing restarts: the process that lost the API server continues."""
    settings = {"CANARY_SECONDS": "1", "CANARY_DEADLINE_SECONDS": "60", "LEASE_SECONDS": "5", **QUICK}
    with operator(installed, tmp_path, proxy.kubeconfig(tmp_path), NAMESPACES=namespace, **settings) as running:
        job = JobOnPlane(api, namespace, spec={"backoffLimit": 1})
        job.start()
        proxy.away = True
        job.head(1, "False", "HeadPodNotFound")
        for line in ("write failed, retry", "does not lead any more"):
            deadlines.wait_until(
                f"the log to say {line!r}", JOB_SEEN, lambda line=line: line in running.log.read_text(encoding="utf-8")
            )
        assert running.page("/healthz").status_code == 200
        assert rayjobs(job) == [job.attempt(1)], "pods keep training"
        proxy.away = False
        job.await_attempt(2)
        assert rayjobs(job) == [job.attempt(2)]
        assert running.process.poll() is None


def test_watches_that_deliver_nothing_fail_the_liveness_probe(
    installed: ControlPlane, api: Api, namespace: str, tmp_path: Path, proxy: FaultProxy
) -> None:
    settings = {"CANARY_SECONDS": "0.5", "CANARY_DEADLINE_SECONDS": "3", "NAMESPACE": namespace, **QUICK}
    job = JobOnPlane(api, namespace, spec={"backoffLimit": 1})
    with operator(installed, tmp_path, proxy.kubeconfig(tmp_path), NAMESPACES=namespace, **settings) as running:
        job.start()
        proxy.frozen = ""
        deadlines.wait_until("/healthz to fail", JOB_SEEN, lambda: running.page("/healthz").status_code != 200)
        assert "no watch event since" in running.page("/healthz").text
        job.head(1, "False", "HeadPodNotFound")
    proxy.frozen = None
    with operator(installed, tmp_path, proxy.kubeconfig(tmp_path), NAMESPACES=namespace, **settings):
        job.await_attempt(2)
        assert rayjobs(job) == [job.attempt(2)]


@pytest.mark.parametrize("kind", ["diffusionrljobs", "rayjobs", "rayclusters", "pods"])
def test_a_silent_watch_of_one_kind_does_no_harm(
    installed: ControlPlane, api: Api, namespace: str, tmp_path: Path, proxy: FaultProxy, kind: str
) -> None:
    """The operator sees its own writes of a kind late, or what others did, and decides nothing that it must undo."""
    job, other = (JobOnPlane(api, namespace, spec={"backoffLimit": 1}, name=name) for name in ("first", "second"))
    with operator(installed, tmp_path, proxy.kubeconfig(tmp_path), NAMESPACES=namespace, **QUICK):
        other.start()
        proxy.frozen = f"/{kind}"
        job.submit()
        seen = kind != "diffusionrljobs"
        if seen:
            job.run(1)
        other.end(1)
        time.sleep(FROZEN_SECONDS)  # several passes: the test's pauses between them are shorter
        attempts = rayjobs(job)
        if not seen and attempts == [other.attempt(1)]:
            attempts = [job.attempt(1), *attempts]  # a list at the start may have told of the job, or not
        assert attempts == [job.attempt(1), other.attempt(1)]
        proxy.frozen = None
        other.await_condition("Succeeded", "True")
        if not seen:
            job.run(1)
        job.await_condition("Ready", "True")
        job.end(1)
        job.await_condition("Succeeded", "True")
    for finished in (job, other):
        status = finished.status()
        assert (status["attempts"], status.get("failures", [])) == (1, [])
        assert "ReconcileError" not in {condition["type"] for condition in status["conditions"]}


def test_an_etcd_that_stops_and_goes_on_delays_jobs(
    installed: ControlPlane, api: Api, namespace: str, running: RunningOperator
) -> None:
    (etcd,) = (daemon for daemon in installed.daemons.recorded() if daemon.name == "etcd")
    job, other = (JobOnPlane(api, namespace, spec={"backoffLimit": 1}, name=name) for name in ("first", "second"))
    job.start()
    other.submit()
    start = len(running.log.read_text(encoding="utf-8"))
    os.kill(etcd.pid, signal.SIGSTOP)
    try:
        deadlines.wait_until(
            "the operator to notice", STOPPED, lambda: "retry" in running.log.read_text(encoding="utf-8")[start:]
        )
        assert running.page("/healthz").status_code == 200
    finally:
        os.kill(etcd.pid, signal.SIGCONT)
    deadlines.wait_until("the API server", deadlines.API_READY, api.ready)
    job.head(1, "False", "HeadPodNotFound")
    job.await_attempt(2)
    other.await_attempt(1)
    other.run(1)
    other.end(1)
    other.await_condition("Succeeded", "True")
    assert sorted(rayjobs(job)) == sorted([job.attempt(2), other.attempt(1)])
    assert running.process.poll() is None


def test_a_policy_that_denies_rayjobs_is_named_until_it_is_gone(
    running: RunningOperator, api: Api, namespace: str
) -> None:
    root = "/apis/admissionregistration.k8s.io/v1"
    name = f"deny-{namespace}"
    rule = {"apiGroups": ["ray.io"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["rayjobs"]}
    match = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}, "resourceRules": [rule]}
    validation = {"expression": "false", "message": "no more GPUs for you"}
    api.post(
        f"{root}/validatingadmissionpolicies",
        {
            "metadata": {"name": name},
            "spec": {"matchConstraints": match, "validations": [validation]},
        },
    )
    api.post(
        f"{root}/validatingadmissionpolicybindings",
        {
            "metadata": {"name": name},
            "spec": {"policyName": name, "validationActions": ["Deny"]},
        },
    )
    probe = {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": {"name": "probe"}, "spec": {"entrypoint": "true"}}

    def denied() -> bool:
        url = f"/apis/ray.io/v1/namespaces/{namespace}/rayjobs?dryRun=All"
        try:
            api.post(url, probe)
        except ApiError as error:
            return "no more GPUs" in str(error)
        return False

    deadlines.wait_until("the policy to be in force", deadlines.API_READY, denied)
    job = JobOnPlane(api, namespace)
    job.submit()
    condition = job.await_condition("Ready", "False", "ChildRefused")
    assert "no more GPUs for you" in condition["message"]
    api.delete(f"{root}/validatingadmissionpolicybindings/{name}")
    api.delete(f"{root}/validatingadmissionpolicies/{name}")
    job.await_attempt(1)


@pytest.fixture
def silent() -> Iterator[int]:
    """A port of the loopback that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


@pytest.mark.parametrize(
    ("answers", "seconds", "told"),
    [
        (False, 5, 'failed calling webhook "gate.example.com"'),
        (True, 2, 'failed calling webhook "gate.example.com"'),
        # Kubernetes' timeout for the webhook is longer than the operator's for a write, which ends with the Lease.
        (True, 10, "no answer in time: the API server, or a webhook that it calls, is too slow"),
    ],
    ids=["refused", "silent", "silent longer than a write"],
)
def test_a_webhook_that_cannot_be_called_is_named_until_it_is_gone(
    running: RunningOperator, api: Api, namespace: str, silent: int, answers: bool, seconds: int, told: str
) -> None:
    """The API server answers 500, or not in time, to the creation of the RayJob, and nothing else fails."""
    other = JobOnPlane(api, namespace, "other")
    other.start()
    root = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
    name = f"dead-{namespace}"
    rule = {"apiGroups": ["ray.io"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["rayjobs"]}
    api.post(
        root,
        {
            "metadata": {"name": name},
            "webhooks": [
                {
                    "name": "gate.example.com",
                    "clientConfig": {"url": f"https://127.0.0.1:{silent if answers else 1}/"},
                    "rules": [rule],
                    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
                    "admissionReviewVersions": ["v1"],
                    "sideEffects": "None",
                    "failurePolicy": "Fail",
                    "timeoutSeconds": seconds,
                }
            ],
        },
    )
    probe = {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": {"name": "probe"}, "spec": {"entrypoint": "true"}}

    def failing() -> bool:
        try:
            api.post(f"/apis/ray.io/v1/namespaces/{namespace}/rayjobs?dryRun=All", probe)
        except ApiError as error:
            return error.code == 500
        return False

    deadlines.wait_until("the webhook to be called", deadlines.API_READY, failing)
    job = JobOnPlane(api, namespace, patience=3 * JOB_SEEN)
    job.submit()
    condition = job.await_condition("Ready", "False", "ServerFailed")
    assert told in condition["message"]
    assert job.status()["state"] == "Pending"
    job.await_events("ServerFailed")
    other.end(1)
    other.await_condition("Succeeded", "True")
    assert rayjobs(job) == [other.attempt(1)]
    api.delete(f"{root}/{name}")
    job.await_attempt(1)


def test_a_quota_on_rayjobs_is_named_until_there_is_room(running: RunningOperator, api: Api, namespace: str) -> None:
    quotas = f"/api/v1/namespaces/{namespace}/resourcequotas"
    api.post(quotas, {"metadata": {"name": "none"}, "spec": {"hard": {"count/rayjobs.ray.io": "0"}}})
    deadlines.wait_until(
        "the quota to be counted", deadlines.API_READY, lambda: "hard" in api.get(f"{quotas}/none").get("status", {})
    )
    job = JobOnPlane(api, namespace)
    job.submit()
    condition = job.await_condition("Ready", "False", "QuotaExceeded")
    assert "quota: none" in condition["message"]
    api.delete(f"{quotas}/none")
    job.await_attempt(1)


def test_a_namespace_that_is_deleted_goes_with_its_jobs(running: RunningOperator, api: Api, namespace: str) -> None:
    job = JobOnPlane(api, namespace)
    job.start()
    api.delete(f"/api/v1/namespaces/{namespace}")
    job.await_gone()
    deadlines.wait_until("the RayJobs to be gone", JOB_SEEN, lambda: not rayjobs(job))


def test_an_upgrade_of_kuberay_interrupts_no_job(running: RunningOperator, api: Api, namespace: str) -> None:
    """Its new CRDs have a new field and a second version; the API server ends all watches of these kinds."""
    job = JobOnPlane(api, namespace)
    later = JobOnPlane(api, namespace, "later")
    job.start()
    before = {f"{CRDS}/{plural}.ray.io": api.get(f"{CRDS}/{plural}.ray.io") for plural in ("rayjobs", "rayclusters")}
    try:
        for path, definition in before.items():
            api.patch(path, {"spec": {"versions": upgraded(definition)}})
        for plural in ("rayjobs", "rayclusters"):
            new = f"/apis/ray.io/v2/namespaces/{namespace}/{plural}"
            deadlines.wait_until(f"{plural} of v2", deadlines.API_READY, lambda at=new: is_served(api, at))
        later.start()
        job.end(1)
        job.await_condition("Succeeded", "True")
        assert api.get(job.ray("rayjobs", job.attempt(1)))["status"]["jobStatus"] == "SUCCEEDED"
        for succeeded in (job, later):
            assert (succeeded.status()["attempts"], succeeded.status().get("failures", [])) == (1, [])
    finally:
        for path, definition in before.items():
            api.patch(path, {"spec": {"versions": definition["spec"]["versions"]}})
    later.end(1)
    later.await_condition("Succeeded", "True")
    assert running.page("/healthz").status_code == 200


def upgraded(definition: dict[str, Any]) -> list[dict[str, Any]]:
    """Versions of a CRD with a new field in each, and another version."""
    versions: list[dict[str, Any]] = copy.deepcopy(definition["spec"]["versions"])
    for version in versions:
        version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["addedField"] = {"type": "string"}
    return [*versions, {**versions[0], "name": "v2", "storage": False}]


def test_kuberay_that_is_removed_and_installed_again_gets_a_new_attempt(
    installed: ControlPlane, running: RunningOperator, api: Api, namespace: str
) -> None:
    """Removing its CRDs deletes all RayJobs and ends their watches."""
    job = JobOnPlane(api, namespace, patience=2 * JOB_SEEN)
    job.start()
    try:
        for plural in ("rayjobs", "rayclusters"):
            api.delete(f"{CRDS}/{plural}.ray.io")
        for plural in ("rayjobs", "rayclusters"):
            deadlines.wait_until(f"{plural} to be gone", JOB_SEEN, lambda at=plural: api.gone(f"{CRDS}/{at}.ray.io"))
        lost = job.await_status("the loss to be seen", lambda status: bool(status.get("failures")))
        assert [item["reason"] for item in lost["failures"]] == ["ChildDeleted"]
        job.await_condition("Ready", "False", "KubeRayNotInstalled")
    finally:
        install_kuberay(installed)
    deadlines.wait_until("the second attempt", 2 * JOB_SEEN, lambda: rayjobs(job) == [job.attempt(2)])
    job.run(2)
    job.await_condition("Ready", "True")
    assert running.page("/healthz").status_code == 200
