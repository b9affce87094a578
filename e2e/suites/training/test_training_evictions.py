"""A rollout pod that is evicted while a weight update waits for the other one, which is cut off."""

from typing import Any

import pytest

from e2e.cluster import deadlines
from e2e.cluster.api import Api
from e2e.jobs import Job
from e2e.suites.training.test_training_losses import (
    FIRST_STEP,
    JOINED,
    NOTICED,
    UPDATE_DEADLINE,
    await_steps,
    await_whole_run,
    cut_off,
    lost,
    step,
)
from e2e.system import System
from e2e.training_jobs import joined, on_two_vendors, pods, the_pod

pytestmark = [pytest.mark.bare, pytest.mark.timeout(3600)]

NAME = "red-grpo-pools"
STEPS = 60


def job_spec() -> dict[str, Any]:
    """The example with rollout pods on the nodes of another vendor, small batches and a short deadline of updates."""
    spec = on_two_vendors(NAME, trainer__totalSteps=STEPS, trainer__evalEverySteps=STEPS, checkpoint__everySteps=STEPS)
    spec["trainer"]["batch"] = {"prompts": 2}
    spec["algorithm"]["overrides"] += [UPDATE_DEADLINE]
    return spec


def test_a_pod_that_is_evicted_in_the_middle_of_a_weight_update_ends_no_attempt(
    system: System, api: Api, space: str
) -> None:
    folder = system.claim(space, "runs") / NAME
    job = Job(api, space, NAME)
    job.create(job_spec())
    job.await_status("a step", lambda status: (status.get("progress", {}).get("globalStep") or 0) >= 1, FIRST_STEP)
    trainer = the_pod(api, space, NAME, "trainer")
    (slow, evicted) = pods(api, space, NAME, "rollout")

    with cut_off(system, slow, trainer):
        begun = step(folder)
        # An update waits for what is cut off, and no step ends meanwhile.
        name = evicted["metadata"]["name"]
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": space}}
        api.post(f"/api/v1/namespaces/{space}/pods/{name}/eviction", eviction)
        deadlines.wait_until("the replica that is cut off to be noticed", NOTICED, lambda: lost(folder) or None)
        assert step(folder) <= begun + 2
    deadlines.wait_until("both to join again", 2 * JOINED, lambda: len(joined(folder)) >= 2 or None)
    await_steps(folder, 2)
    await_whole_run(job, folder, STEPS, samples=STEPS * 2 * 8)
