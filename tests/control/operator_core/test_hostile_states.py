"""Whatever KubeRay, kubelets and other writers put into statuses: passes end, and the job's status fits the CRD."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from omni_operator.api.crd.definition import schema
from omni_operator.cluster.kinds import JOBS, PODS, RAYCLUSTERS, RAYJOBS

KEY = ("team-a", "red")
STATUS = schema()["properties"]["status"]
RFC_3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
NAME = "red-a01"
SETTINGS = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hostile_values", Path(__file__).with_name("hostile_values.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


hostile = load()


def times_of(node: Any, found: Any) -> list[str]:
    """Values of a status whose schema says `date-time`."""
    if isinstance(found, list):
        return [text for item in found for text in times_of(node["items"], item)]
    if isinstance(found, dict):
        return [text for name, value in found.items() for text in times_of(node["properties"][name], value)]
    return [found] if node.get("format") == "date-time" else []


def check_valid(status: dict[str, Any]) -> None:
    """The status is one that the API server accepts."""
    jsonschema.Draft4Validator(STATUS).validate(status)
    json.dumps(status, allow_nan=False).encode()
    for text in times_of(STATUS, status):
        assert RFC_3339.fullmatch(text), text


async def check_the_job_can_end(simulation: Any) -> None:
    """Passes make no more writes, and a deletion works."""
    check_valid(simulation.cluster.get(JOBS, *KEY)["status"])
    simulation.cluster.counts()
    await simulation.reconcile()
    await simulation.settle()
    assert not {call for call in simulation.cluster.counts() if call[0] == "apply_status"}
    simulation.cluster.remove(JOBS, *KEY)
    await simulation.after(3600)
    assert simulation.cluster.get(JOBS, *KEY) is None
    assert not simulation.cluster.all(RAYJOBS)


def put(simulation: Any, kind: Any, name: str, status: dict[str, Any]) -> None:
    if simulation.cluster.get(kind, KEY[0], name):
        simulation.cluster.change(kind, KEY[0], name, status=status)


CHANGES = st.one_of(
    st.tuples(st.just(RAYJOBS), st.just(NAME), hostile.RAYJOB),
    st.tuples(st.just(RAYCLUSTERS), st.just(f"{NAME}-x1"), hostile.RAYCLUSTER),
    st.tuples(st.just(PODS), st.sampled_from([f"{NAME}-x1-head", f"{NAME}-x1-worker"]), hostile.POD),
)


@pytest.mark.slow
@given(st.booleans(), st.lists(st.tuples(CHANGES, st.sampled_from([0, 1, 70, 4000])), min_size=1, max_size=6))
@SETTINGS
def test_no_status_of_a_child_stops_the_passes(new_simulation: Any, runs: bool, changes: list[Any]) -> None:
    async def run() -> None:
        simulation = new_simulation()
        simulation.submit(backoffLimit=1)
        await simulation.settle()
        simulation.run(1) if runs else simulation.start(1)
        await simulation.settle()
        for (kind, name, status), seconds in changes:
            put(simulation, kind, name, status)
            await simulation.after(seconds)
        await check_the_job_can_end(simulation)

    asyncio.run(run())


WRITTEN = hostile.optional(
    attempts=hostile.COUNTS,
    failuresCounted=hostile.COUNTS,
    disruptionsCounted=hostile.COUNTS,
    observedGeneration=hostile.COUNTS,
    startTime=hostile.TIMES,
    attemptStartTime=hostile.TIMES,
    runningTime=hostile.TIMES,
    conditions=hostile.conditions("Suspended", "Admitted", "ProgressStalled", "Whatever", "ReconcileError"),
    failures=st.lists(hostile.optional(attempt=hostile.COUNTS, reason=hostile.TEXTS, at=hostile.TIMES), max_size=3),
    warnings=st.lists(hostile.optional(attempt=hostile.COUNTS, reason=hostile.TEXTS), max_size=3),
    progress=hostile.optional(heartbeatTime=hostile.TIMES, samples=hostile.COUNTS, globalStep=hostile.COUNTS),
    usage=hostile.optional(acceleratorSeconds=st.sampled_from([-1, 0, 1e14, 1e308]), samples=hostile.COUNTS),
    checkpoint=hostile.optional(last=hostile.TEXTS, step=hostile.COUNTS, time=hostile.TIMES),
    children=hostile.optional(rayJob=hostile.TEXTS),
    state=hostile.TEXTS,
    reason=hostile.TEXTS,
)


@pytest.mark.slow
@given(WRITTEN, st.booleans())
@SETTINGS
def test_no_earlier_status_of_the_job_stops_the_passes(new_simulation: Any, written: Any, restarts: bool) -> None:
    async def run() -> None:
        simulation = new_simulation()
        await simulation.submit_running(backoffLimit=1)
        job = simulation.cluster.get(JOBS, *KEY)
        await simulation.cluster.apply_status(JOBS, job, {**job["status"], **written})
        if restarts:
            simulation.start_operator()
        await simulation.after(1)
        put(simulation, RAYJOBS, NAME, {"jobDeploymentStatus": "Complete", "jobStatus": "SUCCEEDED"})
        await simulation.after(1000)
        await check_the_job_can_end(simulation)

    asyncio.run(run())


@pytest.mark.parametrize("ended", ["1970-01-01T00:00:00Z", "2025-12-31T23:59:59Z", "2999-01-01T00:00:00Z"])
async def test_the_clock_of_kuberay_does_not_delete_a_job(simulation: Any, ended: str) -> None:
    simulation.submit(ttlSecondsAfterFinished=600)
    await simulation.settle()
    simulation.run(1)
    await simulation.after(7200)
    simulation.cluster.change(
        RAYJOBS,
        KEY[0],
        NAME,
        status={"jobDeploymentStatus": "Complete", "jobStatus": "SUCCEEDED", "startTime": ended, "endTime": ended},
    )
    await simulation.after(599)
    assert simulation.status().is_true("Succeeded")
    assert 0 <= simulation.status().usage.accelerator_seconds <= 2 * 7200
    await simulation.after(2)
    assert simulation.cluster.get(JOBS, *KEY) is None


async def test_a_head_that_was_lost_in_the_future_is_lost_a_minute_after_the_operator_sees_it(simulation: Any) -> None:
    await simulation.submit_running(backoffLimit=1)
    now = simulation.now
    simulation.now = simulation.now + timedelta(days=300_000)
    simulation.head(1, False, "ContainersNotReady")
    simulation.now = now
    await simulation.after(61)
    assert [failure.reason for failure in simulation.status().failures] == ["HeadLost"]


@pytest.mark.parametrize("number", ["9" * 30, "-1", "1e3", "", "²"])
async def test_objects_with_impossible_attempts_are_no_attempt(simulation: Any, number: str) -> None:
    simulation.submit()
    await simulation.settle()
    labels = {"app.kubernetes.io/managed-by": "omni-operator", "diffusionrl.io/job": "red"}
    simulation.cluster.make(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"namespace": KEY[0], "name": "stray", "labels": {**labels, "diffusionrl.io/attempt": number}},
            "status": {},
        }
    )
    await simulation.after(60)
    assert simulation.status().attempts == 1
    check_valid(simulation.cluster.get(JOBS, *KEY)["status"])
