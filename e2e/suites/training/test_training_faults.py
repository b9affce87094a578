"""Faults of pods and nodes, with real kubelets and KubeRay: what the status says of each, and what happens then.

The jobs run a line of Python instead of the trainer.
"""

from __future__ import annotations

import json

import pytest

from e2e.cluster import deadlines
from e2e.cluster.api import Api
from e2e.cluster.bare.provider import DEPLOYMENTS
from e2e.jobs import Job
from e2e.system import System
from e2e.training_jobs import pods, program

pytestmark = [pytest.mark.bare, pytest.mark.timeout(1200)]

NAMED, RUNNING, ENDED = 120.0, 240.0, 240.0
# A Ray task that allocates until Ray ends it: slowly, because Ray looks four times a second, and the kernel at once.
ALLOCATE = (
    "import ray, time; ray.init(address='auto', log_to_driver=False); "
    "grow = lambda: [(b'x' * (1 << 23), time.sleep(0.05)) for _ in iter(int, 1)]; "
    "ray.get(ray.remote(grow).options(max_retries=0).remote())"
)
FILL = "open('/runs/full/checkpoint', 'wb').write(b'x' * (1 << 25))"
FIRST_ONLY = "import os, time; time.sleep(600 if os.environ['DIFFUSIONRL_ATTEMPT'] == '1' else 0)"


def test_a_missing_image_is_named_in_the_status(api: Api, space: str) -> None:
    """Its pull secret does not exist either."""
    runtime = {"image": "localhost/no-such-image:1", "rayVersion": "2.60.0", "imagePullSecrets": [{"name": "none"}]}
    job = Job(api, space, "missing")
    job.create(program("pass", runtime=runtime))
    job.await_status("the image to be named", lambda status: runtime["image"] in json.dumps(status), NAMED)


def test_a_quota_a_missing_secret_a_full_volume_and_memory_that_runs_out_are_named(api: Api, space: str) -> None:
    quota = f"/api/v1/namespaces/{space}/resourcequotas"
    api.post(quota, {"metadata": {"name": "no-pods"}, "spec": {"hard": {"pods": "0"}}})
    deadlines.wait_until("the quota", NAMED, lambda: "hard" in api.get(f"{quota}/no-pods").get("status", {}))
    greedy, full = Job(api, space, "greedy"), Job(api, space, "full")
    greedy.create(program(ALLOCATE, trainer__resources={"requests": {"cpu": "100m"}, "limits": {"memory": "2Gi"}}))
    small = {"name": "runs", "emptyDir": {"medium": "Memory", "sizeLimit": "16Mi"}}
    full.create(program(
        FILL,
        trainer__podTemplate={"spec": {"volumes": [small]}},
        observability={"tracking": {"loggers": ["wandb"], "wandbSecretRef": {"name": "wandb", "key": "key"}}},
    ))  # fmt: skip
    assert "no-pods" in greedy.await_condition("Ready", "False", "QuotaExceeded", within=NAMED)["message"]
    api.delete(f"{quota}/no-pods")
    missing = full.await_condition("Ready", "False", "CreateContainerConfigError", within=NAMED)
    assert 'secret "wandb" not found' in missing["message"]
    api.post(f"/api/v1/namespaces/{space}/secrets", {"metadata": {"name": "wandb"}, "stringData": {"key": "x"}})
    greedy.await_condition("Failed", "True", "OutOfMemory", within=ENDED)
    failed = full.await_condition("Failed", "True", "ApplicationError", within=ENDED)
    assert "No space left on device" in failed["message"]


def test_a_lost_node_is_named_and_the_next_attempt_waits_for_its_pods(system: System, api: Api, space: str) -> None:
    keep_off_the_nodes_of_jobs(system)
    system.claim(space, "runs")
    job = Job(api, space, "lost")
    taints = ("node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready")
    tolerations = [{"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1} for key in taints]
    # Ray notices the loss after half a minute instead of one, still later than Kubernetes.
    threshold = {"name": "RAY_health_check_failure_threshold", "value": "3"}
    head = {"spec": {"nodeSelector": {"pool": "other"}, "containers": [{"name": "ray", "env": [threshold]}]}}
    worker = {"spec": {"tolerations": tolerations, "terminationGracePeriodSeconds": 5}}
    two = {"backoffLimit": 1, "checkpoint": {"claimName": "runs"}}
    job.create(program(FIRST_ONLY, head__podTemplate=head, trainer__podTemplate=worker, **two))
    job.await_condition("Ready", "True", within=RUNNING)
    (pod,) = pods(api, space, "lost", "trainer")
    node = pod["spec"]["nodeName"]
    system.cluster.cut(node)
    try:
        lost = job.await_status("the loss to be seen", lambda status: bool(status.get("failures")), ENDED)
        assert lost["failures"][0]["reason"] == "Preempted", lost["failures"]
        waiting = job.await_condition("Admitted", "Unknown", "BetweenAttempts", within=NAMED)
        assert "attempt 2 starts when all objects of attempt 1 are deleted" in waiting["message"]
    finally:
        system.cluster.restore(node)
    job.await_condition("Succeeded", "True", within=ENDED)
    assert (job.status()["attempts"], job.status()["failuresCounted"]) == (2, 1)


def keep_off_the_nodes_of_jobs(system: System) -> None:
    """Move operator, KubeRay and DNS to the node without accelerators that jobs request."""
    patch = json.dumps({"spec": {"template": {"spec": {"nodeSelector": {"pool": "other"}}}}})
    for namespace, name in DEPLOYMENTS:
        system.cluster.kubectl("patch", "deployment", name, f"--namespace={namespace}", f"--patch={patch}")
    system.install("--set=nodeSelector.pool=other")
    for namespace, name in DEPLOYMENTS:
        waiting = ("rollout", "status", f"deployment/{name}", f"--namespace={namespace}", f"--timeout={NAMED:g}s")
        system.cluster.kubectl(*waiting, deadline=2 * NAMED)
