"""The operator on a real API server: the requests of a job, counted, and its lifecycle."""

from collections import Counter

import pytest

from e2e.cluster import deadlines
from e2e.cluster.api import Api
from e2e.cluster.control_plane import ControlPlane
from e2e.jobs import JOB_SEEN, JobOnPlane
from e2e.operator_process import AGENT, RunningOperator
from e2e.operator_requests import assert_requests
from omni_operator.api.status import CONDITION_TYPES

pytestmark = pytest.mark.cluster


def test_requests_of_creation_idle_passes_and_deletion_are_counted(
    installed: ControlPlane, running: RunningOperator, api: Api, namespace: str
) -> None:
    job = JobOnPlane(api, namespace)
    mark = installed.audit.mark()
    job.submit()
    job.await_attempt(1)
    job.await_condition("Admitted", "True")
    expected = Counter(
        {
            ("create", "networkpolicies"): 1,
            ("create", "rayjobs"): 1,
            ("patch", "diffusionrljobs/status"): 1,
        }
    )
    assert_requests(installed, namespace, mark, expected)
    job.run(1)
    job.await_condition("Ready", "True")
    more = expected + Counter({("create", "events"): 1, ("create", "poddisruptionbudgets"): 1})
    installed.audit.settled(more, user_agent=AGENT, namespace=namespace, since=mark)
    mark = installed.audit.mark()
    # Irrelevant changes cause passes, which make no requests.
    for number in range(5):
        api.patch(f"{job.path}/{job.name}", {"metadata": {"annotations": {"example.com/touched": str(number)}}})
        api.patch(job.ray("rayjobs", job.attempt(1)), {"metadata": {"annotations": {"example.com/n": str(number)}}})
    api.get("/version")
    assert_requests(installed, namespace, mark, Counter())
    api.delete(f"{job.path}/{job.name}")
    job.await_gone()
    policies = f"/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies"
    for path in (job.ray("rayjobs"), job.ray("rayclusters"), policies):
        deadlines.wait_until(
            f"{path} to be empty", deadlines.CHILDREN_GONE, lambda path=path: not api.get(path)["items"]
        )
    assert_requests(installed, namespace, mark, Counter())


def test_a_job_goes_without_the_operator_and_takes_what_is_created_later(
    installed: ControlPlane, api: Api, namespace: str
) -> None:
    """Garbage collection also deletes objects that are created for a job after its deletion."""
    job = JobOnPlane(api, namespace, spec={"managedBy": "kueue.x-k8s.io/multikueue"})  # the operator leaves it alone
    job.submit()
    uid = api.get(job.own_path)["metadata"]["uid"]
    api.delete(job.own_path)
    job.await_gone()
    owner = {"apiVersion": "diffusionrl.io/v1alpha1", "kind": "DiffusionRLJob", "name": job.name, "uid": uid}
    late = {**owner, "controller": True, "blockOwnerDeletion": True}
    meta = {"name": job.attempt(1), "ownerReferences": [late]}
    body = {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": meta, "spec": {"entrypoint": "true"}}
    api.post(job.ray("rayjobs"), body)
    deadlines.wait_until("the late RayJob to be gone", JOB_SEEN, lambda: api.gone(job.ray("rayjobs", job.attempt(1))))


def test_a_job_succeeds_and_its_conditions_carry_the_generation(
    running: RunningOperator, api: Api, namespace: str
) -> None:
    job = JobOnPlane(api, namespace)
    job.submit()
    job.run(1)
    job.await_condition("Ready", "True", "TrainerAndRolloutsServing")
    job.end(1)
    job.await_condition("Succeeded", "True")
    status = job.status()
    assert {condition["observedGeneration"] for condition in status["conditions"]} == {1}
    assert [condition["type"] for condition in status["conditions"]] == list(CONDITION_TYPES)
    fields = api.get(job.own_path)["metadata"]["managedFields"]
    (owned,) = [entry["fieldsV1"]["f:status"] for entry in fields if entry.get("subresource") == "status"]
    for part, inner in owned.items():
        units = inner.values() if part == "f:conditions" else [inner]
        assert not any(units), f"{part} is no unit: the owner of each of its fields costs the API server time"
    job.await_events("Running", "Succeeded")


def test_a_lost_head_is_followed_by_a_second_attempt(running: RunningOperator, api: Api, namespace: str) -> None:
    job = JobOnPlane(api, namespace, spec={"backoffLimit": 1})
    job.run_and_lose_a_head()
    assert [failure["reason"] for failure in job.status()["failures"]] == ["HeadLost"]
    job.end(2)
    job.await_condition("Succeeded", "True")


def test_suspend_and_resume(running: RunningOperator, api: Api, namespace: str) -> None:
    job = JobOnPlane(api, namespace)
    job.start()
    api.patch(f"{job.path}/{job.name}", {"spec": {"suspend": True}})
    job.await_condition("Suspended", "True")
    api.patch(f"{job.path}/{job.name}", {"spec": {"suspend": False}})
    job.run(2)
    job.await_condition("Suspended", "False")
    job.await_condition("Ready", "True")


def test_metrics_and_probes(running: RunningOperator) -> None:
    assert running.page("/healthz").status_code == 200
    text = running.page("/metrics").text
    for name in ("reconcile_seconds_bucket", "api_requests_total", "watch_last_event_timestamp_seconds", "queue_depth"):
        assert f"diffusionrl_operator_{name}" in text
