"""Accelerator seconds: exact for any sequence of passes, reports and restarts, and with few writes."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from omni_operator.cluster.kinds import RAYJOBS

KEY = ("team-a", "red")
ACCELERATORS = 2
ACTIONS = st.tuples(st.sampled_from(["report", "heartbeat", "pass", "restart"]), st.floats(0.001, 400.0))
ENDS = st.sampled_from(["succeed", "fail", "suspend", "suspend at once", "queue"])
ATTEMPTS = st.lists(st.tuples(st.lists(ACTIONS, max_size=10), ENDS), min_size=1, max_size=3)


async def act(simulation: Any, what: str, attempt: int) -> None:
    if what == "report":
        simulation.report(attempt=attempt, step=simulation.passes, samples=simulation.passes)
    elif what == "heartbeat":
        simulation.report("heartbeat", attempt=attempt)
    elif what == "restart":
        simulation.start_operator()
    else:
        await simulation.reconcile()


async def end(simulation: Any, how: str, attempt: int) -> Any:
    """End an attempt; the time until which its accelerators count."""
    until = simulation.now
    if how == "succeed":
        simulation.end(attempt)
    elif how == "fail":
        simulation.end(attempt, "FAILED", "AppFailed", "exit code 1")
    elif how == "queue":
        name = f"red-a{attempt:02d}"
        status = {"jobDeploymentStatus": "Suspended", "jobStatus": "", "startTime": None}
        simulation.cluster.change(RAYJOBS, KEY[0], name, spec={"suspend": True}, status=status)
        await simulation.after(500)
        simulation.edit(suspend=True)
    else:
        simulation.report("heartbeat", attempt=attempt)
        await simulation.settle()
        simulation.edit(suspend=True)
        await simulation.after(50.25)
        until = simulation.now
        path = f"/ckpt/step_{attempt:06d}"
        simulation.report("checkpoint", attempt=attempt, path=path)
    await simulation.settle()
    simulation.cluster.collect()
    return until


@pytest.mark.slow
@given(ATTEMPTS)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_accelerator_seconds_are_exact(new_simulation: Any, attempts: list[Any]) -> None:
    async def run() -> None:
        simulation, expected = new_simulation(), 0.0
        simulation.submit(backoffLimit=9)
        for attempt, (actions, how) in enumerate(attempts, start=1):
            await simulation.after(1000.5)
            simulation.run(attempt)
            started = simulation.now
            await simulation.settle()
            for what, seconds in actions:
                await simulation.after(seconds)
                await act(simulation, what, attempt)
                await simulation.settle()
            until = await end(simulation, how, attempt)
            expected += (until - started).total_seconds()
            found = simulation.status().usage.accelerator_seconds / ACCELERATORS
            assert math.isclose(found, expected, abs_tol=attempt), (attempt, how)
            if how == "succeed":
                break
            if simulation.condition("Suspended").status == "True":
                simulation.edit(suspend=False)
        await simulation.after(1000)
        written = simulation.status().usage.accelerator_seconds / ACCELERATORS
        assert math.isclose(written, expected, abs_tol=len(attempts)), "what ended is not counted again"

    asyncio.run(run())


async def test_a_silent_job_causes_few_writes(simulation: Any) -> None:
    simulation.submit()
    await simulation.settle()
    simulation.run(1)
    await simulation.after(10.5)
    simulation.report(step=1)
    await simulation.after(20)
    simulation.cluster.counts()
    for _ in range(180):
        await simulation.after(20.3)
        await simulation.reconcile()
    once = {("apply_status", "diffusionrljobs"): 1, ("create", "events"): 1}
    assert simulation.cluster.counts() == once, "the job is stalled, and nothing else changes"
    for _ in range(180):
        simulation.report("heartbeat")
        await simulation.after(20.3)
    writes = simulation.cluster.counts()["apply_status", "diffusionrljobs"]
    assert 10 <= writes <= 16
    assert simulation.condition("ProgressStalled").status == "False"
