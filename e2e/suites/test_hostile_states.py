"""Statuses that KubeRay or others write, and passes that fail, on a real API server."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.api import Api
from e2e.cluster.control_plane import ControlPlane
from e2e.jobs import JobOnPlane
from e2e.operator_process import operator
from omni_operator.api.crd.definition_fields import find_missing
from omni_operator.api.status import UNSEEN, Status
from omni_operator.cluster.cache.object_cache import ObjectCache
from omni_operator.cluster.client import ApiServer
from omni_operator.cluster.credentials import load_credentials
from omni_operator.cluster.errors import Conflict, DefinitionOutdated
from omni_operator.cluster.event_writer import EventWriter
from omni_operator.cluster.kinds import JOBS
from omni_operator.cluster.server_clock import utc_now
from omni_operator.reconcile.pass_errors import PassErrors, find_condition

pytestmark = pytest.mark.cluster
FUTURE = "9999-12-31T23:59:59Z"
PAST = "0001-01-01T00:00:00Z"


async def test_an_error_is_one_condition_beside_the_others(installed: ControlPlane, api: Api, namespace: str) -> None:
    job = JobOnPlane(api, namespace)
    key = (namespace, "red")
    job.submit()
    ready = {"type": "Ready", "status": "True", "reason": "Here", "message": ""}
    status: dict[str, Any] = {"attempts": 1, "conditions": [ready]}
    credentials = await load_credentials({"KUBECONFIG": str(installed.kubeconfig)}, Path("/nonexistent"))
    async with ApiServer(credentials, lambda *_: None, version="0") as cluster:
        schema = await cluster.read_schema(JOBS)
        assert schema is not None
        assert [*find_missing(Status, schema["properties"]["status"], "status")] == []
        errors = PassErrors(cluster, ObjectCache(), EventWriter(cluster, "test"))
        first = api.get(job.own_path)
        await cluster.apply_status(JOBS, first, status)
        with pytest.raises(Conflict):
            await cluster.apply_status(JOBS, first, {**status, "attempts": 3})
        with pytest.raises(DefinitionOutdated):
            await cluster.apply_status(JOBS, api.get(job.own_path), {**status, "newer": 1})
        await errors.show(key, api.get(job.own_path), ZeroDivisionError("naïve \ud800" + "é" * 2000), utc_now())
        shown = find_condition(api.get(job.own_path))
        assert shown is not None
        assert (shown["reason"], shown["message"][:5], len(shown["message"])) == ("ZeroDivisionError", "naïve", 1024)
        await cluster.apply_status(JOBS, api.get(job.own_path), {**status, "attempts": 2})
        written = api.get(job.own_path)
        assert find_condition(written) == shown, "a status write keeps it"
        await errors.clear(key, written)
        assert job.status() == {"attempts": 2, "conditions": [ready], **UNSEEN}
    assert job.await_events("ReconcileError") == ["ReconcileError"]


@pytest.fixture
def deep_stack() -> Iterator[None]:
    """Lets this process, not the operator's, write and read objects that are nested deeply."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(50_000)
    yield
    sys.setrecursionlimit(before)


@pytest.mark.usefixtures("deep_stack")
def test_a_job_that_is_nested_too_deeply_stops_no_other(
    installed: ControlPlane, api: Api, namespace: str, tmp_path: Path
) -> None:
    nested: dict[str, Any] = {}
    for _ in range(4000):
        nested = {"a": nested}
    deep = JobOnPlane(api, namespace, "deep", {"head": {"podTemplate": {"spec": {"affinity": nested}}}})
    before = JobOnPlane(api, namespace, "before")
    after = JobOnPlane(api, namespace, "after")
    deep.submit()
    before.submit()
    with operator(installed, tmp_path, NAMESPACES=namespace) as running:
        before.await_attempt(1)
        after.submit()
        after.await_attempt(1)
        message = deep.await_condition("Admitted", "False", "InvalidSpec")["message"]
        assert "spec.head.podTemplate.spec.affinity" in message
        api.patch(deep.own_path, {"metadata": {"labels": {"a": "b"}}})
        before.run(1)
        before.await_condition("Ready", "True")
        log = running.log.read_text()
        assert "Traceback" not in log, log[-4000:]
    api.delete(deep.own_path)
    deep.await_gone()  # other tests, whose stack is not deep, list all jobs


def test_no_status_of_kuberay_stops_the_passes(
    installed: ControlPlane, api: Api, namespace: str, tmp_path: Path
) -> None:
    spec = {"ttlSecondsAfterFinished": 86_400}
    names = ("past", "future", "long", "ended")
    past, future, long, ended = (JobOnPlane(api, namespace, name, spec) for name in names)
    with operator(installed, tmp_path, NAMESPACES=namespace) as running:
        for job in (past, future, long, ended):
            job.start()

        def write(job: JobOnPlane, status: dict[str, Any]) -> None:
            api.patch(f"{job.ray('rayjobs', job.attempt(1))}/status", {"status": status})

        for job, time in ((past, PAST), (future, FUTURE)):
            write(
                job, {"jobDeploymentStatus": "Complete", "jobStatus": "SUCCEEDED", "startTime": time, "endTime": time}
            )
        workers = {"desiredWorkerReplicas": -5, "readyWorkerReplicas": -(2**31)}
        api.patch(f"{long.ray('rayclusters', long.attempt(1) + '-x1')}/status", {"status": workers})
        text = "x" * 100_000
        write(long, {"dashboardURL": text, "rayClusterName": text, "message": text, "reason": "AppFailed"})
        # Beyond U+FFFF: an apply request is read as YAML, which has no escapes of surrogates.
        failed = f"\U0001f600 \x7f \ufffe {text}"
        write(ended, {"jobDeploymentStatus": "Failed", "jobStatus": "FAILED", "message": failed, "endTime": FUTURE})
        for job in (past, future):
            assert job.await_condition("Succeeded", "True")["lastTransitionTime"] == job.status()["completionTime"]
            assert job.status()["usage"]["acceleratorSeconds"] < 86_400
        assert "\U0001f600" in ended.await_condition("Failed", "True")["message"]
        long.await_status("clamped texts", lambda status: "xxx" in status.get("children", {}).get("dashboardURL", ""))
        assert not find_condition(api.get(long.own_path))
        api.delete(long.own_path)
        long.await_gone()
        log = running.log.read_text()
        assert "unexpected error" not in log, log[-4000:]
