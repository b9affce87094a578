"""Objects of other owners on a real API server: they survive a job of the same name unchanged."""

from typing import Any

import pytest

from e2e.cluster import deadlines
from e2e.cluster.api import Api
from e2e.cluster.control_plane import ControlPlane
from e2e.jobs import JOB_SEEN, JobOnPlane
from e2e.operator_process import RunningOperator
from omni_operator.cluster.client import ApiServer
from omni_operator.cluster.credentials import load_credentials
from omni_operator.cluster.errors import Conflict
from omni_operator.cluster.kinds import NETWORK_POLICIES

pytestmark = pytest.mark.cluster

LABELS = {"app.kubernetes.io/managed-by": "omni-operator", "diffusionrl.io/job": "red", "diffusionrl.io/attempt": "1"}
RAY = {"spec": {"containers": [{"name": "ray", "image": "theirs:1"}]}}
CLUSTER = {"headGroupSpec": {"rayStartParams": {}, "template": RAY}}


def foreign(api: Api, namespace: str, version: str, kind: str, name: str, **body: Any) -> str:
    """Create an object of another owner; return its path."""
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    plural = "networkpolicies" if kind == "NetworkPolicy" else f"{kind.lower()}s"
    path = f"{root}/namespaces/{namespace}/{plural}"
    meta = {"name": name, **body.pop("metadata", {})}
    api.post(path, {"apiVersion": version, "kind": kind, "metadata": meta, **body})
    return f"{path}/{name}"


def test_a_job_neither_changes_nor_deletes_objects_that_have_its_names(
    running: RunningOperator, api: Api, namespace: str
) -> None:
    """A deny-all policy, a ConfigMap and a RayJob stay as they are; the job starts when they are gone."""
    paths = [
        foreign(api, namespace, "networking.k8s.io/v1", "NetworkPolicy", "red", spec={"podSelector": {}}),
        foreign(api, namespace, "ray.io/v1", "RayJob", "red-a01", spec={"entrypoint": "x", "rayClusterSpec": CLUSTER}),
        foreign(api, namespace, "v1", "ConfigMap", "red-a01-config", data={"job.yaml": "theirs"}),
    ]
    before = [api.get(path) for path in paths]
    job = JobOnPlane(api, namespace)
    job.submit()
    condition = job.await_condition("Admitted", "False", "NameTaken")
    assert "NetworkPolicy red exists and does not belong to this job" in condition["message"]
    assert [api.get(path) for path in paths] == before
    job.await_events("NameTaken")
    # Each name in turn: the job continues when the object of the last one is gone.
    api.delete(paths[0])
    job.await_status("the RayJob to be named", lambda status: "RayJob red-a01 " in str(status["conditions"]))
    assert [api.get(path) for path in paths[1:]] == before[1:]
    api.delete(job.own_path)
    job.await_gone()
    assert [api.get(path) for path in paths[1:]] == before[1:]


def test_strays_with_the_labels_of_a_job_change_nothing(running: RunningOperator, api: Api, namespace: str) -> None:
    job = JobOnPlane(api, namespace)
    job.start()
    strays = [
        foreign(
            api,
            namespace,
            "v1",
            "Pod",
            "stray",
            metadata={"labels": LABELS},
            spec={"containers": [{"name": "c", "image": "i"}], "nodeSelector": {"no": "such"}},
        ),
        foreign(
            api,
            namespace,
            "ray.io/v1",
            "RayJob",
            "red-a02",
            metadata={"labels": LABELS},
            spec={"entrypoint": "x", "rayClusterSpec": CLUSTER, "suspend": True},
        ),
        foreign(api, namespace, "ray.io/v1", "RayCluster", "red-a01-y", metadata={"labels": LABELS}, spec=CLUSTER),
    ]
    versions = [api.get(path)["metadata"]["resourceVersion"] for path in strays[1:]]
    job.end(1)
    job.await_condition("Succeeded", "True")
    status = job.status()
    assert (status["attempts"], status.get("failures", [])) == (1, [])
    api.delete(job.own_path)
    job.await_gone()
    deadlines.wait_until("its RayJob to be gone", JOB_SEEN, lambda: api.gone(job.ray("rayjobs", job.attempt(1))))
    assert [api.get(path)["metadata"]["resourceVersion"] for path in strays[1:]] == versions
    assert api.get(strays[0])["metadata"].get("deletionTimestamp") is None


def test_a_rayjob_that_lost_its_labels_is_the_attempt_that_it_was(
    running: RunningOperator, api: Api, namespace: str
) -> None:
    job = JobOnPlane(api, namespace)
    job.start()
    path = job.ray("rayjobs", job.attempt(1))
    uid = api.get(path)["metadata"]["uid"]
    api.patch(path, {"metadata": {"labels": dict.fromkeys(LABELS)}})
    deadlines.wait_until(
        "the labels to be restored",
        JOB_SEEN,
        lambda: LABELS.items() <= api.get(path)["metadata"].get("labels", {}).items(),
    )
    job.end(1)
    job.await_condition("Succeeded", "True")
    assert (job.status()["attempts"], job.status().get("failures", [])) == (1, [])
    assert [item["metadata"]["uid"] for item in api.get(job.ray("rayjobs"))["items"]] == [uid]


def test_drift_of_the_policy_is_corrected(running: RunningOperator, api: Api, namespace: str) -> None:
    job = JobOnPlane(api, namespace)
    job.start()
    policy = f"/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies/red"
    spec = api.get(policy)["spec"]
    changed = {"podSelector": {"matchLabels": {"tier": "x"}}}
    api.patch(policy, {"metadata": {"labels": {"team": "a"}}, "spec": changed})
    deadlines.wait_until("the policy to be corrected", JOB_SEEN, lambda: api.get(policy)["spec"] == spec)
    assert api.get(policy)["metadata"]["labels"]["team"] == "a"


async def test_a_correction_of_an_object_that_was_replaced_in_between_is_a_conflict(
    installed: ControlPlane, api: Api, namespace: str
) -> None:
    def make() -> dict[str, Any]:
        path = foreign(api, namespace, NETWORK_POLICIES.api_version, "NetworkPolicy", "red", spec=selecting("b"))
        return {"apiVersion": NETWORK_POLICIES.api_version, "kind": "NetworkPolicy", **api.get(path)}

    def selecting(value: str) -> dict[str, Any]:
        return {"podSelector": {"matchLabels": {"a": value}}}

    read = make()
    api.delete(NETWORK_POLICIES.path(namespace, "red"))
    replaced = make()
    credentials = await load_credentials({"KUBECONFIG": str(installed.kubeconfig)})
    async with ApiServer(credentials, lambda *_: None, version="test") as cluster:
        with pytest.raises(Conflict):
            await cluster.patch(NETWORK_POLICIES, read, {"spec": selecting("c")})
        assert await cluster.read(NETWORK_POLICIES, namespace, "red") == replaced
        changed = await cluster.patch(NETWORK_POLICIES, replaced, {"spec": selecting("c")})
    assert changed["spec"]["podSelector"] == selecting("c")["podSelector"]
