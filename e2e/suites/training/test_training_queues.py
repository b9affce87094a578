"""A training in a queue of a real Kueue: fewer rollout pods than it asks for, an eviction, and then all of them."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from e2e import kueue
from e2e.cluster import deadlines
from e2e.cluster.api import Api
from e2e.cluster.errors import ToolMissing
from e2e.conftest import as_bare, leave_out
from e2e.jobs import Job
from e2e.suites.training.test_training import checkpoints_of, resumed_from
from e2e.suites.training.test_training_losses import FIRST_STEP, await_steps, await_whole_run
from e2e.system import System
from e2e.training_jobs import metrics, on_two_vendors, pods

pytestmark = [pytest.mark.bare, pytest.mark.timeout(3600), pytest.mark.about("e2e/kueue.py")]

NAME = "red-grpo-pools"
STEPS = 40
# that the job asks for, and that the queue has at first
ROLLOUTS = 3
ROOM = 2
TRAINERS = "nvidia.com/gpu"
ENGINES = "huawei.com/Ascend910"
ADMITTED = 120.0
GONE = 60.0
SAVED = 180.0

Resize = Callable[..., None]


@pytest.fixture
def resize(system: System, api: Api, space: str) -> Iterator[Resize]:
    """A queue with room for the trainer and some engines; what changes how many, or the policy by which it stops."""
    plane = as_bare(system.cluster).plane()

    def objects(engines: int, stop: str = "None") -> list[dict[str, Any]]:
        return kueue.queue_objects({TRAINERS: 1, ENGINES: engines}, namespace=space, stop=stop)

    try:
        with kueue.queue_on_cluster(plane, objects(ROOM)):
            yield lambda engines, stop="None": kueue.apply(plane, objects(engines, stop))
            job = Job(api, space, NAME, patience=GONE)
            if not api.gone(job.own_path):
                api.delete(job.own_path)
            deadlines.wait_until("its RayJob to be gone", GONE, lambda: not api.get(job.ray("rayjobs"))["items"])
    except ToolMissing as error:
        leave_out(error)


@pytest.fixture
def impatient(system: System) -> Iterator[None]:
    """The operator waits 20 s before it asks for fewer pods."""
    system.install("--set=tuning.queueSeconds=20")
    yield
    system.install()


def job_spec() -> dict[str, Any]:
    """The example with small batches, and no periodic checkpoint before the last step."""
    spec = on_two_vendors(
        NAME,
        trainer__totalSteps=STEPS,
        trainer__evalEverySteps=STEPS,
        checkpoint__everySteps=STEPS,
        rollout__replicas=ROLLOUTS,
        rollout__minReplicas=1,
    )
    spec["trainer"]["batch"] = {"prompts": 2}
    return spec


def numbers(job: Job) -> dict[str, Any]:
    """Rollout pods of the first attempt, by what has their number."""
    rollouts = pods(job.api, job.namespace, NAME, "rollout")
    (nodes,) = re.findall(
        r"rollout\.nnodes=(\d+)", job.api.get(job.ray("rayjobs", job.attempt(1)))["spec"]["entrypoint"]
    )
    return {"pods": len(rollouts), "trainer": int(nodes), "status": job.status()["rollout"]["desired"]}


def await_step(job: Job, step: int) -> None:
    def trained(status: dict[str, Any]) -> bool:
        assert not status.get("failures"), status["failures"]
        return (status.get("progress", {}).get("globalStep") or 0) >= step

    job.await_status(f"step {step}", trained, FIRST_STEP)


def test_a_training_starts_with_the_rollout_pods_that_fit_and_after_an_eviction_with_all(
    system: System, api: Api, space: str, impatient: None, resize: Resize
) -> None:
    folder = system.claim(space, "runs") / NAME
    job = Job(api, space, NAME)
    job.create(job_spec(), {"kueue.x-k8s.io/queue-name": kueue.QUEUE})
    admitted = job.await_condition("Admitted", "True", "PartiallyAdmitted", within=ADMITTED)
    assert admitted["message"].startswith(f"admitted with {ROOM} of {ROLLOUTS} rollout pods")
    await_step(job, 1)
    assert set(numbers(job).values()) == {ROOM}

    resize(ROLLOUTS)
    await_steps(folder, 3)
    assert set(numbers(job).values()) == {ROOM}, "the number stays while the attempt runs"

    resize(ROLLOUTS, stop="HoldAndDrain")
    job.await_condition("Admitted", "False", "Queued", within=ADMITTED)
    deadlines.wait_until("the pods to end", SAVED, lambda: not pods(api, space, NAME, "trainer"))
    step_numbers = [line["step"] for line in metrics(folder) if line["step"]]
    assert checkpoints_of(folder) == [step_numbers[-1]] and step_numbers[-1] < STEPS, "steps are lost, or none are left"

    # While the queue admits nothing, the attempt asks for fewer from time to time.
    everything = f"for {ROLLOUTS} of {ROLLOUTS}"
    deadlines.wait_until("all to be asked for", SAVED, lambda: everything in job.condition("Admitted")["message"])
    resize(ROLLOUTS)
    job.await_condition("Admitted", "True", "ChildUnsuspended", within=ADMITTED)
    await_step(job, step_numbers[-1] + 1)
    assert resumed_from(folder) == step_numbers[-1]
    assert set(numbers(job).values()) == {ROLLOUTS}
    await_whole_run(job, folder, STEPS, samples=(STEPS - step_numbers[-1]) * 2 * 8)
    assert job.status()["usage"]["samples"] == STEPS * 2 * 8
