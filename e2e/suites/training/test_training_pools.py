"""Training with engines in pods of their own, on other nodes than the trainer's; only the accelerators are fake."""

from pathlib import Path
from typing import Any

import pytest

from e2e.cluster import deadlines
from e2e.cluster.api import Api
from e2e.drl import run_drl
from e2e.jobs import Job
from e2e.system import System
from e2e.training_jobs import joined, metrics, node_of, on_two_vendors, pods, the_pod
from omni_operator.api.names import ROLLOUT_GROUP, rolling_names

pytestmark = [pytest.mark.bare, pytest.mark.timeout(2400)]

NAME = "red-grpo-pools"
STEPS = 1000  # more than there is time for: the run ends by its suspension
# Generous: on two cores the Ray of three pods takes minutes to start.
FIRST_STEP = 600.0
JOINED = 600.0
DRAINED = 240.0
GONE = 60.0
ENGINE = "ray::vLLMOmniHttpServer"  # title that Ray gives the process of an engine
MISSING_IMAGE = "localhost/no-such-image:1"
NEXT_IMAGE = "localhost/next-image:1"
GIVEN_UP = 30  # seconds for a pod of this image to serve, which is also the time to drain the one before
PROCESSES = "for one in /proc/[0-9]*/cmdline; do tr '\\0' '\\n' <$one | head -n 1; done 2>&1"


def long_job() -> dict[str, Any]:
    """The example with more steps, small batches, and rollout pods on the nodes of another device."""
    spec = on_two_vendors(NAME, trainer__totalSteps=STEPS, trainer__evalEverySteps=STEPS, checkpoint__everySteps=STEPS)
    spec["trainer"]["batch"] = {"prompts": 2}
    spec["rollout"]["replicas"] = 1
    return spec


def engines(system: System, pod: dict[str, Any]) -> int:
    """Number of engines that run in a pod."""
    name = pod["metadata"]["name"]
    space = pod["metadata"]["namespace"]
    command = ("exec", f"--namespace={space}", name, "--container=ray", "--", "sh", "-c", PROCESSES)
    titles = [line.split(".")[0] for line in system.cluster.kubectl(*command).splitlines()]
    return titles.count(ENGINE)


def await_step(job: Job, step: int, within: float) -> dict[str, Any]:
    def trained(status: dict[str, Any]) -> bool:
        assert not status.get("failures"), status["failures"]
        return (status.get("progress", {}).get("globalStep") or 0) >= step

    return job.await_status(f"step {step}", trained, within)


def scale(system: System, job: Job, replicas: int, was: int) -> None:
    scaled = run_drl(system.kubeconfig, "scale", NAME, f"--replicas={replicas}", f"--namespace={job.namespace}")
    assert scaled.stdout == f"{NAME}: spec.rollout.replicas is {replicas}, was {was}\n"


def await_pods(job: Job, count: int) -> None:
    def there() -> bool:
        return len(pods(job.api, job.namespace, NAME, "rollout")) == count

    deadlines.wait_until(f"{count} rollout pods to be left", DRAINED, there)


def roll_back(api: Api, job: Job, run: Path) -> int:
    """Roll the rollout pod to an image that does not exist; the version with which one of the spec before joins."""
    earlier = len(joined(run))
    good = the_pod(api, job.namespace, NAME, "rollout")
    image = {"spec": {"containers": [{"name": "ray", "image": MISSING_IMAGE}]}}
    strategy = {"progressDeadlineSeconds": GIVEN_UP}
    api.patch(job.own_path, {"spec": {"rollout": {"podTemplate": image, "updateStrategy": strategy}}})
    updated = job.await_condition("Updated", "False", "RolledBack", within=DRAINED)
    assert MISSING_IMAGE in updated["message"], updated
    version = deadlines.wait_until("the pod of the spec before to join", JOINED, lambda: joined(run)[earlier:] or None)[
        0
    ]
    back = the_pod(api, job.namespace, NAME, "rollout")
    label = rolling_names(ROLLOUT_GROUP).template
    uids = {pod["metadata"]["uid"] for pod in (good, back)}
    assert back["metadata"]["labels"][label] == good["metadata"]["labels"][label] and len(uids) == 2
    await_step(job, version + 2, JOINED)
    return version


def test_engines_in_pods_of_their_own_get_every_version_and_may_come_and_go(
    system: System, api: Api, space: str
) -> None:
    run = system.claim(space, "runs") / NAME
    job = Job(api, space, NAME)
    job.create(long_job())
    status = await_step(job, 1, FIRST_STEP)
    assert status["rollout"]["summary"] == "1/1"
    earlier = len(joined(run))
    scale(system, job, 4, was=1)
    version = deadlines.wait_until("three replicas to join", JOINED, lambda: joined(run)[earlier + 2 :] or None)[0]
    assert await_step(job, version + 2, JOINED)["rollout"]["summary"] == "4/4"
    members_by_group = {group: pods(api, space, NAME, group) for group in ("trainer", "rollout")}
    placed = {group: [pod["spec"]["nodeName"] for pod in members] for group, members in members_by_group.items()}
    assert placed == {"trainer": [node_of(api, "nvidia")], "rollout": 4 * [node_of(api, "ascend")]}
    running = {group: [engines(system, pod) for pod in members] for group, members in members_by_group.items()}
    assert running == {"trainer": [0], "rollout": 4 * [1]}
    for fewer, was in ((2, 4), (1, 2)):
        scale(system, job, fewer, was)
        await_pods(job, fewer)
        await_step(job, job.status()["progress"]["globalStep"] + 2, JOINED)

    # The last one is lost as well, so every later sample is of the replica that replaces it.
    last = the_pod(api, space, NAME, "rollout")
    earlier = len(joined(run))
    api.delete(f"/api/v1/namespaces/{space}/pods/{last['metadata']['name']}", gracePeriodSeconds="0")
    job.await_condition("Ready", "False", "TooFewRollouts", within=GONE)
    version = deadlines.wait_until("a replica to join", JOINED, lambda: joined(run)[earlier:] or None)[0]
    new = the_pod(api, space, NAME, "rollout")
    assert new["metadata"]["uid"] != last["metadata"]["uid"]
    await_step(job, version + 3, JOINED)
    assert job.condition("Ready")["status"] == "True"

    # Another image replaces it.
    system.cluster.tag(system.rollout.name, NEXT_IMAGE)
    earlier = len(joined(run))
    image = {"spec": {"containers": [{"name": "ray", "image": NEXT_IMAGE}]}}
    api.patch(job.own_path, {"spec": {"rollout": {"drainSeconds": 5, "podTemplate": image}}})
    job.await_condition("Updated", "False", "RollingUpdate", within=GONE)
    version = deadlines.wait_until("the pod of the new spec to join", JOINED, lambda: joined(run)[earlier:] or None)[0]
    job.await_condition("Updated", "True", within=GONE)
    replaced = the_pod(api, space, NAME, "rollout")
    assert replaced["metadata"]["uid"] != new["metadata"]["uid"]
    assert replaced["spec"]["containers"][0]["image"] == NEXT_IMAGE
    label = rolling_names(ROLLOUT_GROUP).template
    assert replaced["metadata"]["labels"][label] != new["metadata"]["labels"][label]
    await_step(job, version + 2, JOINED)
    version = roll_back(api, job, run)

    api.patch(job.own_path, {"spec": {"suspend": True}})
    job.await_condition("Suspended", "True", within=JOINED)
    status = job.status()
    assert (status["attempts"], status.get("failures", [])) == (1, [])
    assert status["progress"]["samples"] == status["progress"]["globalStep"] * 2 * 8
    lines = [line for line in metrics(run) if line["step"]]
    assert version + 2 <= status["checkpoint"]["step"] <= len(lines)
    # A version that was published while no replica served is the one that the next replica joined with.
    none_served = [line["step"] for line in lines if "weights/min_replica_version" not in line]
    assert set(none_served) <= set(joined(run)), none_served
    served = [line for line in lines if line["step"] not in none_served]
    assert all(line[f"weights/{end}_replica_version"] == line["step"] for line in served for end in ("min", "max"))
    assert [line["step"] for line in lines] == list(range(1, len(lines) + 1))
    deadlines.wait_until("the pods to end", GONE, lambda: not pods(api, space, NAME, "trainer"))
