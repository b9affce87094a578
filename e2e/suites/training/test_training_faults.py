"""Faults of pods and nodes, with real kubelets and KubeRay: what the status says of each, and what happens then.

The jobs run a line of Python instead of the trainer.
"""

import json
from typing import Any

import pytest

from e2e.cluster import deadlines
from e2e.cluster.addons import DEPLOYMENTS
from e2e.cluster.api import Api
from e2e.jobs import Job, condition
from e2e.system import System
from e2e.training_jobs import program, the_pod

pytestmark = [pytest.mark.bare, pytest.mark.timeout(1200)]

NAMED = 120.0
RUNNING = 240.0
ENDED = 240.0
# A Ray task that allocates until Ray ends it: slowly, because Ray looks four times a second, and the kernel at once.
ALLOCATE = (
    "import ray, time; ray.init(address='auto', log_to_driver=False); "
    "grow = lambda: [(b'x' * (1 << 23), time.sleep(0.05)) for _ in iter(int, 1)]; "
    "ray.get(ray.remote(grow).options(max_retries=0).remote())"
)
# The training program allocates as fast as it can, without Ray's own watch over memory: the kernel ends it.
OVERRUN = "b'x' * (1 << 32)"
UNWATCHED = {
    "spec": {"containers": [{"name": "ray", "env": [{"name": "RAY_memory_monitor_refresh_ms", "value": "0"}]}]}
}
FIRST_TWO = "import os, time; time.sleep(600 if os.environ['DIFFUSIONRL_ATTEMPT'] < '3' else 0)"
FILL = "open('/runs/full/checkpoint', 'wb').write(b'x' * (1 << 25))"
FIRST_ONLY = "import os, time; time.sleep(600 if os.environ['DIFFUSIONRL_ATTEMPT'] == '1' else 0)"


def test_a_missing_image_is_named_in_the_status(api: Api, space: str) -> None:
    """Its pull secret does not exist either."""
    runtime = {"image": "localhost/no-such-image:1", "rayVersion": "2.60.0", "imagePullSecrets": [{"name": "none"}]}
    job = Job(api, space, "missing")
    job.create(program("pass", runtime=runtime))
    job.await_status("the image to be named", lambda status: runtime["image"] in json.dumps(status), NAMED)


def message(status: dict[str, Any]) -> str:
    """Why a job is not ready because a container cannot be created; empty for other reasons."""
    ready = condition(status, "Ready")
    return str(ready["message"]) if ready.get("reason") == "CreateContainerConfigError" else ""


def test_a_quota_a_missing_secret_a_full_volume_and_memory_that_runs_out_are_named(api: Api, space: str) -> None:
    quota = f"/api/v1/namespaces/{space}/resourcequotas"
    api.post(quota, {"metadata": {"name": "no-pods"}, "spec": {"hard": {"pods": "0"}}})
    deadlines.wait_until("the quota", NAMED, lambda: "hard" in api.get(f"{quota}/no-pods").get("status", {}))
    greedy, killed, full = (Job(api, space, name) for name in ("greedy", "killed", "full"))
    limited = {"requests": {"cpu": "100m"}, "limits": {"memory": "2Gi"}}
    greedy.create(program(ALLOCATE, trainer__resources=limited))
    small = {"name": "runs", "emptyDir": {"medium": "Memory", "sizeLimit": "16Mi"}}
    full.create(
        program(
            FILL,
            trainer__podTemplate={"spec": {"volumes": [small]}},
            observability={"tracking": {"loggers": ["wandb"], "wandbSecretRef": {"name": "wandb", "key": "key"}}},
        )
    )
    assert "no-pods" in greedy.await_condition("Ready", "False", "QuotaExceeded", within=NAMED)["message"]
    api.delete(f"{quota}/no-pods")
    # A busy kubelet first says that it waits for its copy of the Secret.
    full.await_status("the Secret to be named", lambda status: 'secret "wandb" not found' in message(status), NAMED)
    api.post(f"/api/v1/namespaces/{space}/secrets", {"metadata": {"name": "wandb"}, "stringData": {"key": "x"}})
    killed.create(program(OVERRUN, trainer__resources=limited, trainer__podTemplate=UNWATCHED))
    greedy.await_condition("Failed", "True", "OutOfMemory", within=ENDED)
    # The OOM killer ends one process with cgroups v1, the whole container with v2.
    ended = killed.await_condition("Failed", "True", "OutOfMemory", within=ENDED)["message"]
    assert "the training program got SIGKILL" in ended or "was killed because it ran out of memory" in ended
    failed = full.await_condition("Failed", "True", "ApplicationError", within=ENDED)
    assert "No space left on device" in failed["message"]


def test_an_evicted_and_a_preempted_pod_are_named_and_the_next_attempts_start(
    system: System, api: Api, space: str
) -> None:
    classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
    # First, because the API server admits pods by the classes in a cache.
    api.post(classes, {"metadata": {"name": "urgent"}, "value": 1000})
    job = Job(api, space, "moved")
    system.claim(space, "runs")
    movable = {"scheduling": {"voluntaryDisruptions": "Allow"}, "checkpoint": {"claimName": "runs"}}
    job.create(program(FIRST_TWO, trainer__podTemplate={"spec": {"terminationGracePeriodSeconds": 5}}, **movable))
    pod = running_trainer(job, attempt=1)
    path = f"/api/v1/namespaces/{space}/pods"
    meta = {"name": pod["metadata"]["name"], "namespace": space}
    api.post(f"{path}/{meta['name']}/eviction", {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": meta})
    assert "EvictionByEvictionAPI" in failure(job, 1, "Preempted")["message"]
    pod = running_trainer(job, attempt=2)
    api.post(path, urgent_pod(system, pod["spec"]["nodeName"]))
    assert "PreemptionByScheduler" in failure(job, 2, "Preempted")["message"]
    api.delete(f"{path}/urgent", gracePeriodSeconds="0")
    job.await_condition("Succeeded", "True", within=ENDED)
    assert (job.status()["attempts"], job.status()["disruptionsCounted"], job.status()["failuresCounted"]) == (3, 2, 0)
    api.delete(f"{classes}/urgent")


def running_trainer(job: Job, attempt: int) -> dict[str, Any]:
    """The trainer pod of an attempt, once Ray runs the program there: before, the program waits for another pod."""

    def runs() -> bool:
        if job.status().get("attempts") != attempt:
            return False
        rayjob = job.api.get(job.ray("rayjobs", job.attempt(attempt)))
        return bool(rayjob.get("status", {}).get("jobStatus") == "RUNNING")

    deadlines.wait_until(f"attempt {attempt} to run", RUNNING, runs)
    return the_pod(job.api, job.namespace, job.name, "trainer")


def failure(job: Job, number: int, reason: str) -> dict[str, Any]:
    """The failure of an attempt, once the status has it."""
    status = job.await_status(f"failure {number}", lambda found: len(found.get("failures", ())) == number, ENDED)
    last: dict[str, Any] = status["failures"][-1]
    assert (last["attempt"], last["reason"]) == (number, reason), last
    return last


def urgent_pod(system: System, node: str) -> dict[str, Any]:
    """A pod that takes all accelerators of a node, with a priority by which the scheduler makes room for it."""
    devices = {"nvidia.com/gpu": "8"}
    container = {
        "name": "main",
        "image": system.rollout.name,
        "command": ["sleep", "600"],
        "resources": {"requests": devices, "limits": devices},
    }
    spec = {"priorityClassName": "urgent", "nodeSelector": {"kubernetes.io/hostname": node}, "containers": [container]}
    return {"metadata": {"name": "urgent"}, "spec": spec}


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
    job.create(
        program(FIRST_ONLY, head__podTemplate=head, trainer__podTemplate=worker, checkpoint={"claimName": "runs"})
    )
    job.await_condition("Ready", "True", within=RUNNING)
    pod = the_pod(api, space, "lost", "trainer")
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
    assert (job.status()["attempts"], job.status()["failuresCounted"]) == (2, 0)


def keep_off_the_nodes_of_jobs(system: System) -> None:
    """Move operator, KubeRay and DNS to the node without accelerators that jobs request."""
    patch = json.dumps({"spec": {"template": {"spec": {"nodeSelector": {"pool": "other"}}}}})
    for namespace, name in DEPLOYMENTS:
        system.cluster.kubectl("patch", "deployment", name, f"--namespace={namespace}", f"--patch={patch}")
    system.install("--set=nodeSelector.pool=other")
    for namespace, name in DEPLOYMENTS:
        waiting = ("rollout", "status", f"deployment/{name}", f"--namespace={namespace}", f"--timeout={NAMED:g}s")
        system.cluster.kubectl(*waiting, deadline=2 * NAMED)
