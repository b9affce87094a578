"""Whatever KubeRay, kubelets and other writers put into statuses: passes end, and the job's status fits the CRD."""

import asyncio
import json
import re
from datetime import timedelta
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from control.operator_core.pools import KEY
from omni_operator.api.crd.definition import schema
from omni_operator.cluster.kinds import JOBS, PODS, RAYCLUSTERS, RAYJOBS

TIMES = st.sampled_from(
    [
        "0001-01-01T00:00:00Z",
        "0001-01-01T00:00:00+14:00",
        "1970-01-01T00:00:00Z",
        "2026-01-01T00:00:10Z",
        "2026-01-01T00:00:10.123456789+02:00",
        "2999-01-01T00:00:00Z",
        "9999-12-31T23:59:59Z",
        "9999-12-31T23:59:59-14:00",
    ]
)
TEXTS = st.one_of(
    st.sampled_from(
        ["", "x" * 900, "y" * 100_000, "\x00\x1b[31m\u2028\u202e", "exceeded quota", "OOMKilled", "é" * 600]
    ),
    st.text(max_size=30),
)
COUNTS = st.one_of(st.sampled_from([-1, 0, 1, 2, -(2**31), 2**31 - 1, 2**63 - 1, 10**30]), st.integers(0, 5))


def optional(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


def conditions(*kinds: str) -> st.SearchStrategy[list[dict[str, Any]]]:
    condition = st.fixed_dictionaries(
        {"type": st.sampled_from(kinds), "status": st.sampled_from(["True", "False", "Unknown"])},
        optional={"reason": TEXTS, "message": TEXTS, "lastTransitionTime": TIMES},
    )
    return st.lists(condition, max_size=len(kinds), unique_by=lambda found: found["type"])


DEPLOYMENTS = "Initializing Running Complete Failed Suspending Suspended Retrying Waiting ValidationFailed Scheduled"
RAYJOB = optional(
    jobDeploymentStatus=st.sampled_from(["", *DEPLOYMENTS.split(), "x" * 900]),
    jobStatus=st.sampled_from(["", "PENDING", "RUNNING", "SUCCEEDED", "FAILED", "STOPPED", "x" * 900]),
    reason=st.one_of(TEXTS, st.sampled_from(["DeadlineExceeded", "AppFailed", "JobStatusCheckTimeoutExceeded"])),
    message=TEXTS,
    rayClusterName=TEXTS,
    dashboardURL=TEXTS,
    startTime=TIMES,
    endTime=TIMES,
    rayJobInfo=optional(startTime=TIMES, endTime=TIMES),
    failed=COUNTS,
    succeeded=COUNTS,
)
RAYCLUSTER = optional(
    state=TEXTS,
    desiredWorkerReplicas=COUNTS,
    readyWorkerReplicas=COUNTS,
    conditions=conditions("HeadPodReady", "RayClusterProvisioned", "ReplicaFailure"),
)
STATE = optional(
    waiting=optional(reason=st.one_of(TEXTS, st.sampled_from(["ImagePullBackOff", "CrashLoopBackOff"])), message=TEXTS),
    terminated=optional(reason=TEXTS, exitCode=COUNTS, message=TEXTS),
)
CONTAINER = st.fixed_dictionaries(
    {"name": TEXTS}, optional={"state": STATE, "lastState": STATE, "restartCount": COUNTS}
)
POD = optional(
    phase=st.sampled_from(["Pending", "Running", "Succeeded", "Failed", "Unknown"]),
    conditions=conditions("PodScheduled", "Ready", "DisruptionTarget"),
    containerStatuses=st.lists(CONTAINER, max_size=2),
    initContainerStatuses=st.lists(CONTAINER, max_size=1),
)
STATUS = schema()["properties"]["status"]
RFC_3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
NAME = "red-a01"
SETTINGS = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


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
    st.tuples(st.just(RAYJOBS), st.just(NAME), RAYJOB),
    st.tuples(st.just(RAYCLUSTERS), st.just(f"{NAME}-x1"), RAYCLUSTER),
    st.tuples(st.just(PODS), st.sampled_from([f"{NAME}-x1-head", f"{NAME}-x1-worker"]), POD),
)


@pytest.mark.slow
@given(st.booleans(), st.lists(st.tuples(CHANGES, st.sampled_from([0, 1, 70, 4000])), min_size=1, max_size=6))
@SETTINGS
def test_no_status_of_a_child_stops_the_passes(new_simulation: Any, runs: bool, changes: list[Any]) -> None:
    async def run() -> None:
        simulation = new_simulation()
        await simulation.submit_and_settle(backoffLimit=1)
        simulation.run(1) if runs else simulation.start(1)
        await simulation.settle()
        for (kind, name, status), seconds in changes:
            put(simulation, kind, name, status)
            await simulation.after(seconds)
        await check_the_job_can_end(simulation)

    asyncio.run(run())


WRITTEN = optional(
    attempts=COUNTS,
    failuresCounted=COUNTS,
    disruptionsCounted=COUNTS,
    observedGeneration=COUNTS,
    startTime=TIMES,
    attemptStartTime=TIMES,
    runningTime=TIMES,
    conditions=conditions("Suspended", "Admitted", "ProgressStalled", "Whatever", "ReconcileError"),
    failures=st.lists(optional(attempt=COUNTS, reason=TEXTS, at=TIMES), max_size=3),
    warnings=st.lists(optional(attempt=COUNTS, reason=TEXTS), max_size=3),
    progress=optional(heartbeatTime=TIMES, samples=COUNTS, globalStep=COUNTS),
    usage=optional(acceleratorSeconds=st.sampled_from([-1, 0, 1e14, 1e308]), samples=COUNTS),
    checkpoint=optional(last=TEXTS, step=COUNTS, time=TIMES),
    children=optional(rayJob=TEXTS),
    state=TEXTS,
    reason=TEXTS,
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
    await simulation.submit_and_settle(ttlSecondsAfterFinished=600)
    simulation.run(1)
    await simulation.after(7200)
    times = {"startTime": ended, "endTime": ended}
    simulation.change(RAYJOBS, status={"jobDeploymentStatus": "Complete", "jobStatus": "SUCCEEDED", **times})
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
    await simulation.submit_and_settle()
    labels = {"app.kubernetes.io/managed-by": "omni-operator", "diffusionrl.io/job": "red"}
    meta = {"namespace": KEY[0], "name": "stray", "labels": {**labels, "diffusionrl.io/attempt": number}}
    simulation.cluster.make({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "status": {}})
    await simulation.after(60)
    assert simulation.status().attempts == 1
    check_valid(simulation.cluster.get(JOBS, *KEY)["status"])
