"""Admission webhooks that alter what the operator creates and writes."""

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from e2e.altering_webhook import Body, Patch, altering_webhook
from e2e.cluster import deadlines
from e2e.cluster.api import Api
from e2e.cluster.control_plane import ControlPlane
from e2e.jobs import JOB_SEEN, JobOnPlane
from e2e.operator_process import AGENT, RunningOperator, operator

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
            for number, group in enumerate(groups):
                containers = group["template"]["spec"]["containers"]
                if not any(container["name"] == "proxy" for container in containers):
                    at = f"/spec/rayClusterSpec/workerGroupSpecs/{number}/template/spec/containers/-"
                    patch.append({"op": "add", "path": at, "value": {"name": "proxy", "image": "proxy:1"}})
        if resource == "networkpolicies":
            patch.append({"op": "add", "path": "/spec/ingress", "value": []})
        return patch

    job = JobOnPlane(api, namespace, spec={"backoffLimit": 1})
    mark = installed.audit.mark()
    with altering_webhook(installed, api, namespace, ["rayjobs", "networkpolicies"], add):
        job.start()
        containers = job.await_attempt(1)["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["template"]["spec"]
        assert "proxy" in {container["name"] for container in containers["containers"]}
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

    job = JobOnPlane(api, namespace)
    other = JobOnPlane(api, namespace, "other")
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


def test_what_a_webhook_denies_with_403_is_no_missing_right(
    installed: ControlPlane, running: RunningOperator, api: Api, namespace: str
) -> None:
    """A new object, and then a change of the number of pods."""
    rollout = {"placement": "Separate", "replicas": 2, "minReplicas": 1}
    job = JobOnPlane(api, namespace, spec={"rollout": rollout})
    with altering_webhook(installed, api, namespace, ["rayjobs", "rayclusters"], lambda *_: []) as webhook:
        webhook.denial = "[cost-centre] no label"
        job.submit()
        message = job.await_condition("Ready", "False", "ChildRefused")["message"]
        assert 'admission webhook "alter.example.com" denied the request: [cost-centre] no label' in message
        webhook.denial = ""
        job.run(1)
        job.await_condition("Ready", "False", "PodsNotReady")
        webhook.denial = "[gpus] no more"
        api.patch(job.own_path, {"spec": {"rollout": {"replicas": 3}}})
        assert webhook.denial in job.await_condition("Ready", "False", "ChildRefused")["message"]


def test_another_value_of_managed_by_disturbs_neither_jobs_nor_probes(
    installed: ControlPlane, api: Api, namespace: str, tmp_path: Path
) -> None:
    """Also not on the operator's own Leases."""

    def replace(resource: str, body: Body) -> Patch:
        labels = {**body["metadata"].get("labels", {}), "app.kubernetes.io/managed-by": "platform"}
        return [{"op": "add", "path": "/metadata/labels", "value": labels}]

    job = JobOnPlane(api, namespace)
    resources = ["rayjobs", "rayclusters", "networkpolicies", "pods", "leases"]
    settings = {"NAMESPACE": namespace, "NAMESPACES": namespace, "CANARY_SECONDS": "1", "CANARY_DEADLINE_SECONDS": "6"}
    with altering_webhook(installed, api, namespace, resources, replace):
        with operator(installed, tmp_path, **settings) as running:
            job.start()
            labels = job.await_attempt(1)["metadata"]["labels"]
            assert labels["app.kubernetes.io/managed-by"] == "platform"
            time.sleep(12)  # longer than any write may take until its watch delivers it
            assert running.page("/healthz").status_code == 200
            job.end(1)
            job.await_condition("Succeeded", "True")


@pytest.mark.parametrize("part", ["labels", "ownerReferences"])
def test_a_job_whose_rayjob_is_stored_without_label_or_owner_waits_alone_and_leaves_nothing(
    installed: ControlPlane, running: RunningOperator, api: Api, namespace: str, part: str
) -> None:
    def strip(resource: str, body: Body) -> Patch:
        return [{"op": "remove", "path": f"/metadata/{part}"}] if part in body["metadata"] else []

    job = JobOnPlane(api, namespace)
    other = JobOnPlane(api, "default", f"other-{part.lower()}")
    with altering_webhook(installed, api, namespace, ["rayjobs"], strip):
        job.submit()
        message = job.await_condition("Ready", "False", "ChildRefused")["message"]
        lost = part if part == "ownerReferences" else "label diffusionrl.io/job"
        assert f"RayJob red-a01 was stored without its {lost}, and was deleted again" in message
        other.submit()
        other.await_attempt(1)
        assert running.page("/healthz").status_code == 200
        api.delete(other.own_path)
        api.delete(job.own_path)
        job.await_gone()
        assert api.get(job.ray("rayjobs"))["items"] == []


def test_edits_of_a_rayjob_are_named_or_corrected(running: RunningOperator, api: Api, namespace: str) -> None:
    job = JobOnPlane(api, namespace)
    job.start()
    path = job.ray("rayjobs", job.attempt(1))
    uid = api.get(job.own_path)["metadata"]["uid"]
    api.patch(path, {"metadata": {"ownerReferences": None}}, fieldManager="kubectl-edit")

    def owned() -> bool:
        return [owner["uid"] for owner in api.get(path)["metadata"].get("ownerReferences", ())] == [uid]

    deadlines.wait_until("the owner to be restored", JOB_SEEN, owned)
    api.patch(path, {"spec": {"entrypoint": "sleep 1"}}, fieldManager="kubectl-edit")
    message = job.await_condition("Updated", "False", "ChangedByOthers")["message"]
    assert message.startswith("field manager 'kubectl-edit' changed the entrypoint or annotations of RayJob red-a01")
    job.end(1)
    job.await_condition("Succeeded", "True")


def test_a_suspended_job_does_not_wait_for_a_pod_with_a_made_up_owner(
    running: RunningOperator, api: Api, namespace: str
) -> None:
    job = JobOnPlane(api, namespace)
    job.start()
    # Garbage collection keeps an object whose owner is of a kind that is not served.
    owner = {"apiVersion": "example.com/v1", "kind": "RayCluster", "name": job.cluster_name(1), "uid": "made-up"}
    labels = job.await_attempt(1)["metadata"]["labels"]
    pods = f"/api/v1/namespaces/{namespace}/pods"
    api.post(
        pods,
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "theirs", "labels": labels, "ownerReferences": [{**owner, "controller": True}]},
            "spec": {"containers": [{"name": "c", "image": "i"}], "nodeSelector": {"no": "such"}},
        },
    )
    api.patch(job.own_path, {"spec": {"suspend": True}})
    job.await_condition("Suspended", "True")
    assert "deletionTimestamp" not in api.get(f"{pods}/theirs")["metadata"]
