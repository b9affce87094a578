"""Training with engines in pods of their own, on other nodes than the trainer's; only the accelerators are fake."""

from __future__ import annotations

from typing import Any

import pytest

from e2e.cluster import deadlines
from e2e.cluster.api import Api
from e2e.jobs import Job
from e2e.system import System
from e2e.training_jobs import example, metrics

pytestmark = [pytest.mark.bare, pytest.mark.timeout(2400)]

NAME = "red-grpo-pools"
STEPS = 3
# Generous: on two cores the Ray of three pods takes minutes to start.
FIRST_STEP, WHOLE_RUN, GONE = 600.0, 900.0, 60.0
ENGINE = "ray::vLLMOmniHttpServer"  # title that Ray gives the process of an engine
PROCESSES = "for one in /proc/[0-9]*/cmdline; do tr '\\0' '\\n' <$one | head -n 1; done 2>&1"


def short_job() -> dict[str, Any]:
    """The example with few steps, and rollout pods on the nodes of another device."""
    spec = example(NAME)
    spec["trainer"] |= {"totalSteps": STEPS, "evalEverySteps": STEPS}
    spec["trainer"]["batch"] = {"prompts": 2}
    spec["rollout"]["accelerator"]["resourceName"] = "huawei.com/Ascend910"
    spec["rollout"]["scheduling"] = {"nodeSelector": {"pool": "ascend"}}
    # Both rollout pods and the head are on one node, which has as many CPUs as this machine.
    spec["rollout"]["resources"] = {"requests": {"cpu": "100m", "memory": "2Gi"}}
    return spec


def workers(api: Api, space: str) -> dict[str, list[dict[str, Any]]]:
    """The job's pods besides the head, by worker group."""
    found: dict[str, list[dict[str, Any]]] = {}
    for pod in api.get(f"/api/v1/namespaces/{space}/pods", labelSelector=f"diffusionrl.io/job={NAME}")["items"]:
        labels = pod["metadata"]["labels"]
        if labels["ray.io/node-type"] == "worker":
            found.setdefault(labels["ray.io/group"], []).append(pod)
    return found


def engines(system: System, pod: dict[str, Any]) -> int:
    """Number of engines that run in a pod."""
    name, space = pod["metadata"]["name"], pod["metadata"]["namespace"]
    command = ("exec", f"--namespace={space}", name, "--container=ray", "--", "sh", "-c", PROCESSES)
    titles = [line.split(".")[0] for line in system.cluster.kubectl(*command).splitlines()]
    return titles.count(ENGINE)


def test_engines_in_pods_of_their_own_get_every_version(system: System, api: Api, space: str) -> None:
    run, job = system.claim(space, "runs") / NAME, Job(api, space, NAME)
    job.create(short_job())

    def trained(status: dict[str, Any]) -> bool:
        assert not status.get("failures"), status["failures"]
        return (status.get("progress", {}).get("globalStep") or 0) >= 1

    status = job.await_status("step 1", trained, FIRST_STEP)
    assert status["rollout"]["summary"] == "2/2"
    pods = workers(api, space)
    placed = {group: [pod["spec"]["nodeName"] for pod in found] for group, found in pods.items()}
    assert placed == {"trainer": ["nvidia"], "rollout": ["ascend", "ascend"]}
    running = {group: [engines(system, pod) for pod in found] for group, found in pods.items()}
    assert running == {"trainer": [0], "rollout": [1, 1]}

    job.await_condition("Succeeded", "True", within=WHOLE_RUN)
    status = job.status()
    assert (status["attempts"], status.get("failures", [])) == (1, [])
    assert (status["weights"]["minReplicaVersion"], status["weights"]["maxReplicaVersion"]) == (STEPS, STEPS)
    assert status["progress"]["samples"] == STEPS * 2 * 8
    served = [
        (line["weights/min_replica_version"], line["weights/max_replica_version"])
        for line in metrics(run)
        if line["step"]
    ]
    assert served == [(step, step) for step in range(1, STEPS + 1)]
    assert "serves no more" not in (run / "train.log").read_text(encoding="utf-8"), "a replica was removed"
    deadlines.wait_until("the pods to end", GONE, lambda: not workers(api, space))
