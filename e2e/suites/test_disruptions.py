"""Evictions on a real API server, with the pods of a real KubeRay."""

from pathlib import Path
from typing import Any

import httpx2
import pytest

from e2e.cluster import deadlines
from e2e.cluster.api import Api, ApiError
from e2e.cluster.control_plane import control_plane
from e2e.cluster.errors import ToolMissing
from e2e.conftest import leave_out
from e2e.jobs import JOB_SEEN, JobOnPlane
from e2e.kuberay import kuberay
from e2e.operator_process import install, operator

pytestmark = pytest.mark.cluster
PODS = "/api/v1/namespaces/default/pods"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"


def ready_pods(api: Api, job: JobOnPlane) -> list[dict[str, Any]] | None:
    """The head and the trainer pod, once both are ready."""
    pods = [pod for pod in api.get(PODS)["items"] if pod["metadata"]["labels"].get("diffusionrl.io/job") == job.name]
    return pods if len(pods) == 2 and all(map(is_ready, pods)) else None


def is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    return any((condition["type"], condition["status"]) == ("Ready", "True") for condition in conditions)


def evict(api: Api, pod: dict[str, Any]) -> int:
    """Evict a pod, as `kubectl drain` does; the code of the answer."""
    meta = {"name": pod["metadata"]["name"], "namespace": "default"}
    try:
        api.post(f"{PODS}/{meta['name']}/eviction", {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": meta})
    except ApiError as error:
        return error.code
    return httpx2.codes.CREATED


def protects(api: Api) -> bool:
    """Whether Kubernetes has counted the pods of the only budget."""
    statuses = [budget.get("status", {}) for budget in api.get(BUDGETS)["items"]]
    return [
        (status.get("expectedPods"), status.get("currentHealthy"), status.get("disruptionsAllowed"))
        for status in statuses
    ] == [(2, 2, 0)]


def test_head_and_trainer_pods_are_not_evicted_unless_the_job_allows_it(tmp_path: Path) -> None:
    try:
        with (
            control_plane({"gpu-0": {"nvidia.com/gpu": 8}}, parent=tmp_path) as plane,
            kuberay(plane),
            plane.api() as api,
        ):
            install(plane, kuberay=False)
            with operator(plane, tmp_path):
                kept = JobOnPlane(api, "default", "kept", {"checkpoint": {}})
                allowed = {"checkpoint": {}, "scheduling": {"voluntaryDisruptions": "Allow"}}
                movable = JobOnPlane(api, "default", "movable", allowed)
                kept.submit()
                pods = deadlines.wait_until("pods", 2 * JOB_SEEN, lambda: ready_pods(api, kept))
                deadlines.wait_until("the budget", JOB_SEEN, lambda: protects(api))
                for pod in pods:
                    assert pod["metadata"]["annotations"]["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"
                    assert evict(api, pod) == httpx2.codes.TOO_MANY_REQUESTS
                movable.submit()
                pods = deadlines.wait_until("pods", 2 * JOB_SEEN, lambda: ready_pods(api, movable))
                for pod in pods:
                    assert "karpenter.sh/do-not-disrupt" not in pod["metadata"].get("annotations", {})
                    assert evict(api, pod) == httpx2.codes.CREATED
                assert len(api.get(BUDGETS)["items"]) == 1
                api.delete(kept.own_path)
                deadlines.wait_until("the budget to be gone", 2 * JOB_SEEN, lambda: not api.get(BUDGETS)["items"])
    except ToolMissing as error:
        leave_out(error)
