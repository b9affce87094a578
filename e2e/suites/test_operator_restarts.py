"""Operators that are killed, run twice, have minimal permissions, or start before KubeRay is installed."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster import deadlines
from e2e.cluster.api import Api
from e2e.cluster.control_plane import ControlPlane, control_plane
from e2e.jobs import JOB_SEEN, JobOnPlane
from e2e.operator_process import AGENT, install, operator
from e2e.operator_rights import CLUSTER, LEASE, OWN, WATCHED, grant

pytestmark = pytest.mark.cluster
QUICK = {"RETRY_SECONDS": "0.1"}
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
WATCHED_SECONDS = 20
WRITES = 10  # of one operator in that time: five at once, then after 1, 2, 4 and 8 s


def test_a_killed_operator_creates_no_second_child(
    installed: ControlPlane, api: Api, namespace: str, tmp_path: Path
) -> None:
    job = JobOnPlane(api, namespace)
    with operator(installed, tmp_path, NAMESPACES=namespace) as first:
        job.submit()
        job.await_attempt(1)
        first.process.kill()
        first.process.wait()
    mark = installed.audit.mark()
    with operator(installed, tmp_path, NAMESPACES=namespace):
        job.run(1)
        job.await_condition("Ready", "True")
        assert len(api.get(job.ray("rayjobs"))["items"]) == 1
        assert installed.audit.counts(user_agent=AGENT, since=mark)["patch", "rayjobs"] <= 1


def test_a_new_operator_handles_what_happened_while_none_ran(
    installed: ControlPlane, api: Api, namespace: str, tmp_path: Path
) -> None:
    names = ("red", "blue", "green")
    running, lost, deleted = (JobOnPlane(api, namespace, name, {"backoffLimit": 1}) for name in names)
    with operator(installed, tmp_path, NAMESPACES=namespace, **QUICK):
        for job in (running, lost, deleted):
            job.start()
    running.end(1)
    lost.head(1, "False", "HeadPodNotFound")
    api.delete(f"{deleted.path}/{deleted.name}")
    new = JobOnPlane(api, namespace, "white")
    new.submit()
    mark = installed.audit.mark()
    with operator(installed, tmp_path, NAMESPACES=namespace, **QUICK):
        running.await_condition("Succeeded", "True")
        lost.await_attempt(2)
        new.await_attempt(1)
        deleted.await_gone()
        counts = installed.audit.counts(user_agent=AGENT, since=mark)
        of_kopf = installed.audit.counts(user_agent="kopf/", since=mark)
    reads = {resource: number for (verb, resource), number in counts.items() if verb == "watch"}
    expected = ("rayjobs", "rayclusters", "pods", "networkpolicies")
    assert {resource: reads.get(resource) for resource in expected} == dict.fromkeys(expected, 1)
    assert reads.get("leases") == 2, "the first one asks whether the API server streams lists"
    assert of_kopf["watch", "diffusionrljobs"] == 1
    lists = {call: number for call, number in {**counts, **of_kopf}.items() if call[0] == "list"}
    assert lists == {("list", "diffusionrljobs"): 1}, "of metadata; the watches stream the lists"


def test_two_concurrent_operators_create_one_child(
    installed: ControlPlane, api: Api, namespace: str, tmp_path: Path
) -> None:
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        folder.mkdir()
    mark = installed.audit.mark()
    with (
        operator(installed, folders[0], NAMESPACES=namespace, **QUICK),
        operator(installed, folders[1], NAMESPACES=namespace, **QUICK),
    ):
        job = JobOnPlane(api, namespace, spec={"backoffLimit": 1})
        job.run_and_lose_a_head()
        job.end(2)
        job.await_condition("Succeeded", "True")
        status = job.status()
        assert (status["attempts"], len(status["failures"]), status["failuresCounted"]) == (2, 1, 1)
    created = [
        call.name
        for call in installed.audit.calls(mark)
        if (call.namespace, call.verb, call.resource) == (namespace, "create", "rayjobs") and call.code < 300
    ]
    assert sorted(created) == [job.attempt(1), job.attempt(2)]


def test_two_operators_with_different_settings_write_seldom(
    installed: ControlPlane, api: Api, namespace: str, tmp_path: Path
) -> None:
    """The second one has no image for the job, so it refuses what the first one runs."""
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        folder.mkdir()
    job = JobOnPlane(api, namespace)
    with operator(installed, folders[0], NAMESPACES=namespace, **QUICK):
        job.start()
        with operator(installed, folders[1], NAMESPACES=namespace, IMAGE=None, **QUICK) as second:
            deadlines.wait_until(
                "both to write", JOB_SEEN, lambda: "another program changes the status again" in second.log.read_text()
            )
            mark = installed.audit.mark()
            time.sleep(WATCHED_SECONDS)
            counts = installed.audit.counts(user_agent=AGENT, since=mark)
            assert counts["patch", "diffusionrljobs/status"] <= 2 * WRITES
            job.end(1)
            job.await_condition("Succeeded", "True")
    assert len(api.get(job.ray("rayjobs"))["items"]) == 1


@pytest.mark.parametrize("scope", ["everywhere", "one-namespace"])
def test_the_minimal_permissions_are_sufficient(
    installed: ControlPlane, api: Api, namespace: str, tmp_path: Path, scope: str
) -> None:
    settings: dict[str, Any] = {"NAMESPACE": namespace, "LEASE": LEASE, **QUICK}
    if scope == "everywhere":
        grant(api, namespace, "ClusterRole", (*WATCHED, *CLUSTER))
        grant(api, namespace, "Role", OWN)
    else:
        grant(api, namespace, "Role", (*WATCHED, *OWN))
        grant(api, namespace, "ClusterRole", CLUSTER)
        settings["NAMESPACES"] = namespace
    mark = installed.audit.mark()
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    deadlines.wait_until(
        "the account of the namespace", deadlines.POD_RUNNING, lambda: bool(api.get(accounts)["items"])
    )
    kubeconfig = installed.kubeconfig_of_account(namespace, "default")
    with operator(installed, tmp_path, kubeconfig, **settings) as running:
        job = JobOnPlane(api, namespace, spec={"backoffLimit": 1})
        job.run_and_lose_a_head()
        assert running.page("/healthz").status_code == 200
        api.delete(f"{job.path}/{job.name}")
        job.await_gone()
    user = f"system:serviceaccount:{namespace}:default"
    refused = {
        (call.verb, call.resource)
        for call in installed.audit.calls(mark)
        if call.user == user
        and call.code == 403
        and call.user_agent.startswith(AGENT)
        and call.namespace in ("", namespace)  # nothing may be created in one of another test, while it is deleted
    }
    assert not refused


def test_kuberay_can_be_installed_after_the_operator(tmp_path: Path) -> None:
    with control_plane({}, parent=tmp_path) as plane, plane.api() as api:
        install(plane, kuberay=False)
        with operator(plane, tmp_path):
            job = JobOnPlane(api, "default")
            job.submit()
            condition = job.await_condition("Ready", "False", "KubeRayNotInstalled")
            assert "install KubeRay" in condition["message"]
            api.patch(f"{job.path}/{job.name}", {"spec": {"seed": 17}})
            install(plane)
            job.run(1)
            job.await_condition("Ready", "True")
            (workers,) = job.await_attempt(1)["spec"]["rayClusterSpec"]["workerGroupSpecs"]
            assert "seed: 17" in workers["template"]["metadata"]["annotations"]["diffusionrl.io/job.yaml"]


def test_a_definition_of_jobs_that_is_deleted_and_comes_back_ends_no_process(tmp_path: Path) -> None:
    """kopf ends when the kind of its watch is gone; the same process observes everything again."""
    with control_plane({}, parent=tmp_path) as plane, plane.api() as api:
        install(plane)
        with operator(plane, tmp_path, **QUICK) as running:
            deleted = JobOnPlane(api, "default", "deleted")
            deleted.start()
            api.delete(f"{CRDS}/diffusionrljobs.diffusionrl.io")
            deadlines.wait_until(
                "the operator to wait for the definition",
                2 * JOB_SEEN,
                lambda: "DiffusionRLJobs are not served" in running.log.read_text(encoding="utf-8"),
            )
            assert [running.page(path).status_code for path in ("/healthz", "/readyz")] == [200, 503]
            install(plane)
            job = JobOnPlane(api, "default")
            job.start()
            job.end(1)
            job.await_condition("Succeeded", "True")
            assert running.ready()


def test_the_permissions_exclude_secrets_and_exec() -> None:
    text = json.dumps([*WATCHED, *OWN, *CLUSTER])
    for word in ("secrets", "exec", "roles", "*", "escalate", "impersonate"):
        assert word not in text
