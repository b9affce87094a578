"""Admission webhooks that alter what the operator creates and writes."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pytest

from e2e.altering_webhook import Body, Patch, altering_webhook
from e2e.cluster.api import Api
from e2e.cluster.control_plane import ControlPlane
from e2e.jobs import JobOnPlane
from e2e.operator_process import AGENT, RunningOperator

pytestmark = pytest.mark.cluster
WATCHED_SECONDS = 20


def written(plane: ControlPlane, mark: Any) -> Counter[tuple[str, str]]:
    """Requests of the operator by verb and resource."""
    return plane.audit.settled(Counter(), user_agent=AGENT, since=mark)


def test_what_a_webhook_adds_to_children_stays_and_disturbs_no_job(
    installed: ControlPlane, running: RunningOperator, api: Api, namespace: str
) -> None:
    def add(resource: str, body: Body) -> Patch:
        meta = body["metadata"]
        marks = {**meta.get("labels", {}), "team": "a", "stamp": str(time.monotonic_ns())}
        patch: Patch = [{"op": "add", "path": "/metadata/labels", "value": marks}]
        if resource == "rayjobs" and "deletionTimestamp" not in meta:
            finalizers = sorted({*meta.get("finalizers", ()), "example.com/audit"})
            patch.append({"op": "add", "path": "/metadata/finalizers", "value": finalizers})
            groups = body["spec"].get("rayClusterSpec", {}).get("workerGroupSpecs", ())
            for place, group in enumerate(groups):
                containers = group["template"]["spec"]["containers"]
                if not any(one["name"] == "proxy" for one in containers):
                    at = f"/spec/rayClusterSpec/workerGroupSpecs/{place}/template/spec/containers/-"
                    patch.append({"op": "add", "path": at, "value": {"name": "proxy", "image": "proxy:1"}})
        if resource == "networkpolicies":
            patch.append({"op": "add", "path": "/spec/ingress", "value": []})
        return patch

    job = JobOnPlane(api, namespace, spec={"backoffLimit": 1})
    mark = installed.audit.mark()
    with altering_webhook(installed, api, namespace, ["rayjobs", "networkpolicies"], add):
        job.start()
        containers = job.await_attempt(1)["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["template"]["spec"]
        assert "proxy" in {one["name"] for one in containers["containers"]}
        time.sleep(WATCHED_SECONDS)
        counts = written(installed, mark)
        assert (counts["create", "networkpolicies"], counts["create", "rayjobs"]) == (1, 1)
        # A correction that changes nothing is tried once for each change of the job or of the policy, not for ever.
        assert counts["patch", "networkpolicies"] <= 3
        assert counts["patch", "diffusionrljobs/status"] <= 6
        assert counts["patch", "rayjobs"] == 0
        assert job.condition("Updated")["reason"] == "AsRequested"
        job.end(1)
        job.await_condition("Succeeded", "True")
    api.patch(job.ray("rayjobs", job.attempt(1)), {"metadata": {"finalizers": []}})


def test_a_status_that_a_webhook_alters_is_written_seldom_and_the_job_goes_on(
    installed: ControlPlane, running: RunningOperator, api: Api, namespace: str
) -> None:
    def alter(resource: str, body: Body) -> Patch:
        if resource != "diffusionrljobs/status":
            return []
        places = range(len(body.get("status", {}).get("conditions", ())))
        return [{"op": "replace", "path": f"/status/conditions/{at}/reason", "value": "Approved"} for at in places]

    job, other = JobOnPlane(api, namespace), JobOnPlane(api, namespace, "other")
    with altering_webhook(installed, api, namespace, ["rayjobs", "diffusionrljobs/status"], alter):
        job.submit()
        job.run(1)
        job.await_condition("Ready", "True", "Approved")
        mark = installed.audit.mark()
        time.sleep(WATCHED_SECONDS)
        assert written(installed, mark)["patch", "diffusionrljobs/status"] <= 4
        other.submit()
        other.await_attempt(1)
        job.end(1)
        job.await_condition("Succeeded", "True")
    names = [item["metadata"]["name"] for item in api.get(job.ray("rayjobs"))["items"]]
    assert sorted(names) == [other.attempt(1), job.attempt(1)]
    assert running.page("/healthz").status_code == 200
