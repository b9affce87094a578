"""Rollout pods that are cut off or lost while two of them serve: the trainer goes on, and the job succeeds."""

import os
import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster import deadlines
from e2e.cluster.api import Api
from e2e.jobs import Job
from e2e.system import System
from e2e.training_jobs import events, joined, metrics, on_two_vendors, pods, the_pod

pytestmark = [pytest.mark.bare, pytest.mark.timeout(3600)]

NAME = "red-grpo-pools"
LOSSES = int(os.environ.get("ROLLOUT_LOSSES", "1"))
STEPS = 80 + 50 * LOSSES  # a lost replica is replaced within 50 steps, also where other pods start at the same time
FIRST_STEP = 600.0
NOTICED = 120.0
JOINED = 400.0
DONE = 1200.0
UPDATE_DEADLINE = "actor_rollout_ref.rollout.checkpoint_engine.engine_kwargs.omni_tcp.deadline_seconds=20"


def job_spec() -> dict[str, Any]:
    """The example with rollout pods on the nodes of another vendor, and a short deadline of updates."""
    spec = on_two_vendors(NAME, trainer__totalSteps=STEPS, trainer__evalEverySteps=STEPS, checkpoint__everySteps=STEPS)
    spec["algorithm"]["overrides"] += [UPDATE_DEADLINE]
    return spec


@contextmanager
def cut_off(system: System, pod: dict[str, Any], other: dict[str, Any]) -> Iterator[None]:
    """The node of a pod drops what the pod sends to another one, so that no connection between them makes progress."""
    node = pod["spec"]["nodeName"]
    rule = ["from", pod["status"]["podIP"], "to", other["status"]["podIP"], "blackhole"]
    system.cluster.run_in(node, "ip", "rule", "add", *rule)
    try:
        yield
    finally:
        system.cluster.run_in(node, "ip", "rule", "del", *rule)


def lost(folder: Path) -> list[str]:
    return [event["message"] for event in events(folder) if event.get("reason") == "ReplicaRemoved"]


def step(folder: Path) -> int:
    return metrics(folder)[-1]["step"]


def await_whole_run(job: Job, folder: Path, steps: int, samples: int) -> None:
    """The first attempt succeeds, each step is there once, by replicas with its weights, and no sample is lost."""
    job.await_condition("Succeeded", "True", within=DONE)
    status = job.status()
    assert (status["attempts"], status.get("failures", [])) == (1, [])
    lines = [line for line in metrics(folder) if line["step"]]
    assert [line["step"] for line in lines] == list(range(1, steps + 1))
    assert all(line[f"weights/{end}_replica_version"] == line["step"] for line in lines for end in ("min", "max"))
    assert status["progress"]["samples"] == samples


def await_steps(folder: Path, count: int) -> None:
    begun = step(folder)
    deadlines.wait_until(f"{count} more steps", NOTICED, lambda: step(folder) >= begun + count)


def test_a_replica_that_is_cut_off_or_lost_is_replaced_and_training_goes_on(
    system: System, api: Api, space: str
) -> None:
    folder = system.claim(space, "runs") / NAME
    job = Job(api, space, NAME)
    job.create(job_spec())
    job.await_status("a step", lambda status: (status.get("progress", {}).get("globalStep") or 0) >= 1, FIRST_STEP)
    trainer = the_pod(api, space, NAME, "trainer")
    rollouts = pods(api, space, NAME, "rollout")
    assert len(rollouts) == 2

    with cut_off(system, rollouts[0], trainer):
        deadlines.wait_until("the replica that is cut off to be noticed", NOTICED, lambda: lost(folder) or None)
        await_steps(folder, 3)
    assert re.search(r"replica \d+ serves no more: version \d+ did not reach it", lost(folder)[0])
    deadlines.wait_until("it to join again", JOINED, lambda: len(joined(folder)) >= 1)

    chance = random.Random(LOSSES)
    for number in range(LOSSES):
        await_steps(folder, chance.randint(1, 3))
        gone = chance.choice(pods(api, space, NAME, "rollout"))
        before = len(joined(folder))
        api.delete(f"/api/v1/namespaces/{space}/pods/{gone['metadata']['name']}", gracePeriodSeconds="0")
        await_steps(folder, 2)
        deadlines.wait_until(
            f"replacement {number + 1} to join", JOINED, lambda before=before: len(joined(folder)) > before
        )

    await_whole_run(job, folder, STEPS, samples=STEPS * 4 * 8)
