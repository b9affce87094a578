"""Jobs on a real API server with a real KubeRay: repaired before they run, and with a container that ends meanwhile."""

from collections.abc import Iterator
from typing import Any

import pytest

from e2e.cluster import deadlines
from e2e.cluster.api import Api, ApiError
from e2e.cluster.control_plane import ControlPlane, control_plane
from e2e.cluster.errors import DeadlinePassed, ToolMissing
from e2e.conftest import leave_out
from e2e.drl import run_drl
from e2e.jobs import JOB_SEEN, JobOnPlane
from e2e.kuberay import kuberay
from e2e.operator_process import install, operator

pytestmark = pytest.mark.cluster
HEAD_SECONDS = 3
VPA = "/apis/admissionregistration.k8s.io/v1"
LIMITS = {"limits": {"cpu": "1", "memory": "2Gi"}}
LABEL = {"metadata": {"labels": {"team": "vision"}}}
HARD: dict[str, Any] = {"limits.cpu": "100", "limits.memory": "1000Gi"}


@pytest.fixture(scope="module")
def managed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane with KubeRay and an operator."""
    folder = tmp_path_factory.mktemp("kuberay")
    try:
        with control_plane({"gpu-0": {"nvidia.com/gpu": 8}}, parent=folder) as plane, kuberay(plane):
            install(plane, kuberay=False)
            with operator(plane, folder, HEAD_TIMEOUT_SECONDS=str(HEAD_SECONDS)):
                yield plane
    except ToolMissing as error:
        leave_out(error)


def own_namespace(plane: ControlPlane, api: Api, name: str) -> str:
    api.post("/api/v1/namespaces", {"metadata": {"name": name}})
    plane.await_account(name)
    return name


def pods(job: JobOnPlane) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = job.api.get(f"/api/v1/namespaces/{job.namespace}/pods")["items"]
    return items


def await_pods(job: JobOnPlane, attempt: int) -> list[dict[str, Any]]:
    """The head and the trainer pod of an attempt, ready."""

    def there() -> list[dict[str, Any]] | None:
        job_pods = [pod for pod in pods(job) if pod["metadata"]["name"].startswith(f"{job.attempt(attempt)}-")]
        ready = [pod for pod in job_pods if condition_of(pod, "Ready") == "True"]
        return job_pods if len(ready) == 2 else None

    try:
        return deadlines.wait_until(f"pods of attempt {attempt}", 2 * JOB_SEEN, there)
    except DeadlinePassed as error:
        raise AssertionError(f"{error}: {[pod.get('status') for pod in pods(job)]}") from error


def condition_of(body: dict[str, Any], kind: str) -> str | None:
    statuses = (item["status"] for item in body.get("status", {}).get("conditions", ()) if item["type"] == kind)
    return next(statuses, None)


def deny_pods_without_label(api: Api, namespace: str) -> None:
    """A policy as other clusters have them, in effect: the API server reads it some time later."""
    api.post(
        f"{VPA}/validatingadmissionpolicies",
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": namespace},
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": {
                    "resourceRules": [
                        {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]},
                    ]
                },
                "validations": [
                    {"expression": "'team' in object.metadata.labels", "message": "label team is required"}
                ],
            },
        },
    )
    api.post(
        f"{VPA}/validatingadmissionpolicybindings",
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": namespace},
            "spec": {
                "policyName": namespace,
                "validationActions": ["Deny"],
                "matchResources": {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}},
            },
        },
    )
    pod = {
        "metadata": {"name": "any", "labels": {"app": "any"}},
        "spec": {"containers": [{"name": "any", "image": "any"}]},
    }

    def refused() -> bool:
        try:
            api.post(f"/api/v1/namespaces/{namespace}/pods?dryRun=All", pod)
        except ApiError as error:
            return "label team is required" in str(error)
        return False

    deadlines.wait_until("the policy", JOB_SEEN, refused)


def test_limits_that_a_quota_asks_for_take_effect_at_once(managed: ControlPlane) -> None:
    with managed.api() as api:
        namespace = own_namespace(managed, api, "quota")
        api.post(f"/api/v1/namespaces/{namespace}/resourcequotas", {"metadata": {"name": "q"}, "spec": {"hard": HARD}})
        job = JobOnPlane(api, namespace, spec={"checkpoint": {}})
        job.submit()
        job.await_condition("Ready", "False", "QuotaExceeded")
        why = run_drl(managed.kubeconfig, "why", job.name, f"--namespace={namespace}").output
        assert "must specify limits" in why and "What to do: set what the message says must be specified" in why
        api.patch(job.own_path, {"spec": {"trainer": {"resources": LIMITS}, "head": {"resources": LIMITS}}})
        assert len(await_pods(job, 2)) == 2
        status = job.status()
        assert (status["attempts"], status.get("failures", [])) == (2, [])
        job.await_condition("Updated", "True", "AsRequested")
        assert api.gone(job.ray("rayjobs", job.attempt(1)))
        api.delete(job.own_path)
        job.await_gone()


def test_a_label_that_a_policy_asks_for_takes_effect_at_once(managed: ControlPlane) -> None:
    with managed.api() as api:
        namespace = own_namespace(managed, api, "policy")
        deny_pods_without_label(api, namespace)
        job = JobOnPlane(api, namespace, spec={"checkpoint": {}})
        job.submit()
        job.await_condition("Ready", "False", "PodsRefused")
        api.patch(job.own_path, {"spec": {"trainer": {"podTemplate": LABEL}, "head": {"podTemplate": LABEL}}})
        assert len(await_pods(job, 2)) == 2
        assert (job.status()["attempts"], job.status().get("failures", [])) == (2, [])
        api.delete(job.own_path)
        job.await_gone()


def test_a_template_that_the_api_server_refuses_is_named_with_field_and_value_and_corrected(
    managed: ControlPlane,
) -> None:
    """One that the operator does not find itself: then it is refused before a RayJob exists."""
    with managed.api() as api:
        namespace = own_namespace(managed, api, "template")
        job = JobOnPlane(api, namespace, spec={"checkpoint": {}})
        job.spec["trainer"] = {"totalSteps": 10, "accelerator": {"vendor": "NVIDIA"}, "podTemplate": pulled("always")}
        job.submit()
        message = job.await_condition("Ready", "False", "PodsRefused")["message"]
        assert 'spec.containers[0].imagePullPolicy: Unsupported value: "always"' in message
        why = run_drl(managed.kubeconfig, "why", job.name, f"--namespace={namespace}").output
        # For Ray's container and for KubeRay's init container, which has Ray's image; retries have other events.
        assert why.count('Unsupported value: "always"') == 2
        assert "What to do: correct what the message names" in why
        api.patch(job.own_path, {"spec": {"trainer": {"podTemplate": pulled("Always")}}})
        assert len(await_pods(job, 2)) == 2
        assert (job.status()["attempts"], job.status().get("failures", [])) == (2, [])
        api.delete(job.own_path)
        job.await_gone()


def pulled(policy: str) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "ray", "imagePullPolicy": policy}]}}


def test_a_sidecar_that_ends_ends_no_training(managed: ControlPlane) -> None:
    """KubeRay says then that the head is not ready, and counts no worker."""
    sidecar = {"spec": {"containers": [{"name": "ray"}, {"name": "agent", "image": "agent:1"}]}}
    with managed.api() as api:
        namespace = own_namespace(managed, api, "sidecar")
        job = JobOnPlane(api, namespace, spec={"checkpoint": {}, "head": {"podTemplate": sidecar}})
        job.spec["trainer"] = {"totalSteps": 10, "accelerator": {"vendor": "NVIDIA"}, "podTemplate": sidecar}
        job.submit()
        job_pods = await_pods(job, 1)
        job.set_running(1)
        job.await_condition("Ready", "True")
        for pod in job_pods:
            end_container(api, pod, "agent")
        cluster = job.status()["children"]["rayCluster"]

        def counted() -> bool:
            body = api.get(job.ray("rayclusters", cluster))
            return condition_of(body, "HeadPodReady") == "False" and not body["status"].get("readyWorkerReplicas")

        deadlines.wait_until("KubeRay to see it", JOB_SEEN, counted)
        job.await_status("the warning", lambda status: bool(status.get("warnings")))
        with pytest.raises(AssertionError):  # for longer than a head may be not ready
            job.await_condition("Ready", "False", within=2 * HEAD_SECONDS)
        status = job.status()
        assert (status["state"], status["attempts"], status.get("failures", [])) == ("Running", 1, [])
        (warning,) = status["warnings"]
        assert (
            warning["reason"] == "SidecarNotRunning" and "container agent ended with exit code 1" in warning["message"]
        )
        why = run_drl(managed.kubeconfig, "why", job.name, f"--namespace={namespace}").output
        assert "container agent ended with exit code 1: lost its server" in why
        api.delete(job.own_path)
        job.await_gone()


def end_container(api: Api, pod: dict[str, Any], name: str) -> None:
    """The kubelet says that a container has ended, and that the pod is not ready without it."""
    states = pod["status"]["containerStatuses"]
    end = {"terminated": {"exitCode": 1, "reason": "Error", "message": "lost its server"}}
    states = [{**state, "ready": False, "state": end} if state["name"] == name else state for state in states]
    assert any(state["state"] == end for state in states)
    kinds = {"Ready": "False", "ContainersReady": "False"}
    conditions = [
        {**item, "status": kinds[item["type"]], "reason": "ContainersNotReady"} if item["type"] in kinds else item
        for item in pod["status"]["conditions"]
    ]
    meta = pod["metadata"]
    api.patch(
        f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/status",
        {"status": {"containerStatuses": states, "conditions": conditions}},
    )
