"""Training in two pods on two nodes: the updates of one pod, and the loss of one; only the accelerators are fake.

Losing the pod with the training program is the same as for a job in one pod: test_training_faults.py.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster import addons
from e2e.cluster.api import Api
from e2e.cluster.provider import NodeSpec
from e2e.drl import run_drl
from e2e.jobs import Job
from e2e.system import System
from e2e.training_jobs import SMALL, example, metrics, node_of, pods

pytestmark = [pytest.mark.bare, pytest.mark.timeout(2400)]

ONE = "in-one-pod"
TWO = "in-two-pods"
# steps that are compared, between checkpoints, and of the run in two pods
COMPARED = 2
SAVED = 2
STEPS = 30
DEVICE = "nvidia.com/gpu"
# Generous: on two cores the Ray of three pods takes minutes to start.
FIRST_STEPS = 900.0
ENDED = 900.0
LOSS_SEEN = 240.0


@pytest.fixture
def second_node(system: System, api: Api) -> Iterator[str]:
    """Another node with accelerators of the trainer's kind."""
    name = node_of(api, "ascend")
    addons.add_devices(system.cluster.kubectl, [NodeSpec(name, {DEVICE: 8})])
    yield name
    gone = [
        {"op": "remove", "path": f"/status/{part}/{DEVICE.replace('/', '~1')}"} for part in ("capacity", "allocatable")
    ]
    patch = ("patch", "node", name, "--subresource=status", "--type=json", f"--patch={json.dumps(gone)}")
    system.cluster.kubectl(*patch)


def job_in(count: int, name: str, steps: int) -> dict[str, Any]:
    """The example in this many pods, each on another node, and the head on a third node; without evaluation."""
    labels = {"diffusionrl.io/job": name, "ray.io/group": "trainer"}
    apart = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": labels}}
    spec = example(
        "red-grpo-cluster",
        head__podTemplate={"spec": {"nodeSelector": {"pool": "other"}}},
        head__resources=SMALL,
        rollout__replicas=count,
        trainer__replicas=count,
        trainer__resources={"requests": {"cpu": "100m", "memory": "2Gi"}},
        trainer__podTemplate={
            "spec": {
                "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}},
                "terminationGracePeriodSeconds": 5,
            }
        },
        trainer__totalSteps=steps,
        checkpoint__everySteps=SAVED,
        rollout__samplesPerPrompt=4,
        rollout__engine={"maxBatchSize": 1},
        trainer__batch={"prompts": 2},
    )
    del spec["data"]["validation"], spec["trainer"]["evalEverySteps"]
    return spec


def await_checkpoint(job: Job, step: int, attempt: int) -> dict[str, Any]:
    def saved(status: dict[str, Any]) -> bool:
        assert len(status.get("failures", ())) < attempt, status["failures"]
        return status.get("attempts") == attempt and (status.get("checkpoint", {}).get("step") or 0) >= step

    return job.await_status(f"the checkpoint of step {step}", saved, FIRST_STEPS)


def output(system: System, pod: dict[str, Any]) -> str:
    return system.cluster.kubectl("logs", f"--namespace={pod['metadata']['namespace']}", pod["metadata"]["name"])


def steps(run: Path) -> list[dict[str, Any]]:
    """Metrics of each step."""
    return [line for line in metrics(run) if line["step"] > 0]


def lose(api: Api, job: Job, pod: dict[str, Any], attempt: int) -> None:
    """Delete a pod of an attempt, and await what the status says of it."""
    api.delete(f"/api/v1/namespaces/{job.namespace}/pods/{pod['metadata']['name']}", gracePeriodSeconds="0")
    status = job.await_status("the loss", lambda found: len(found.get("failures", ())) == attempt, LOSS_SEEN)
    failure = status["failures"][-1]
    assert (failure["attempt"], failure["reason"]) == (attempt, "WorkerLost"), json.dumps(failure)


def without_program(system: System, found: list[dict[str, Any]]) -> dict[str, Any]:
    """The pod that the training program is not in."""
    (idle,) = (pod for pod in found if "\nstep " not in output(system, pod))
    return idle


def compare(alone: dict[str, Any], shared: dict[str, Any]) -> None:
    """The same step in one pod and in two.

    Engines that generate images one by one have no batch that differs: with the same weights, rewards are equal. Two
    ranks add gradients in another order; the tolerance is the same as in `tests/ml/workers/actor/test_ranks.py`.
    """
    first = shared["step"] == 1
    for name in ("reward/mean", "reward/std"):
        assert shared[name] == (alone[name] if first else pytest.approx(alone[name], rel=1e-3, abs=1e-4)), name
    assert shared["actor/grad_norm"] == pytest.approx(alone["actor/grad_norm"], rel=1e-3)
    assert (shared["step"], shared["actor/optimizer_steps"]) == (alone["step"], alone["actor/optimizer_steps"])


def test_two_pods_make_the_updates_of_one_and_the_job_survives_the_loss_of_one(
    system: System, api: Api, space: str, second_node: str
) -> None:
    runs = system.claim(space, "runs")
    one = Job(api, space, ONE)
    two = Job(api, space, TWO)
    one.create(job_in(1, ONE, COMPARED))
    one.await_condition("Succeeded", "True", within=FIRST_STEPS)
    two.create(job_in(2, TWO, STEPS))
    await_checkpoint(two, SAVED, attempt=1)
    trainers = pods(api, space, TWO, "trainer")
    (head,) = pods(api, space, TWO, "headgroup")
    assert {pod["spec"]["nodeName"] for pod in trainers} == {node_of(api, "nvidia"), second_node}
    assert head["spec"]["nodeName"] == node_of(api, "other")
    idle = without_program(system, trainers)
    logs = run_drl(system.kubeconfig, "logs", TWO, f"--namespace={space}").stdout
    # Ray prints the address of a process that is in another pod than the training program.
    for address in ("", rf", ip={re.escape(idle['status']['podIP'])}"):
        assert re.search(rf"\(DiffusionActorRolloutWorker pid=\d+{address}\)", logs), address
    lose(api, two, idle, attempt=1)
    two.await_condition("Succeeded", "True", within=ENDED)
    assert (two.status()["attempts"], two.status()["failuresCounted"]) == (2, 1)
    rows = steps(runs / TWO)
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    alone = steps(runs / ONE)
    assert len(alone) == COMPARED
    for row, shared in zip(alone, rows, strict=False):
        compare(row, shared)
    first, second = starts(runs / TWO)
    assert first == 0 and SAVED <= second < STEPS


def starts(run: Path) -> list[int]:
    """The checkpoints that the attempts began with; 0 for none."""
    reports = [json.loads(line) for line in (run / "progress.jsonl").read_text(encoding="utf-8").splitlines()]
    return [event["resumed_from"] or 0 for event in reports if event["event"] == "start"]
