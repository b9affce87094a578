"""Health of jobs by kstatus (Flux, Helm 4) and by the documented script for Argo CD, in every state."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, get_args

import pytest

from control.operator_core.pools import KEY, unscheduled
from e2e.cluster.errors import ToolMissing
from e2e.conftest import leave_out
from e2e.health import Health, find_health
from omni_operator.api.status import JobState
from omni_operator.cluster.errors import Forbidden
from omni_operator.cluster.kinds import JOBS, PODS, RAYJOBS

pytestmark = pytest.mark.cluster

Simulation = Any
IN_PROGRESS = ("InProgress", "Progressing")
FAILED = ("Failed", "Degraded")
CURRENT = ("Current", "Healthy")
SUSPENDED = ("Current", "Suspended")


async def not_seen(simulation: Simulation) -> None:
    simulation.submit()


async def without_kuberay(simulation: Simulation) -> None:
    simulation.cluster.absent = {RAYJOBS}
    await simulation.submit_and_settle()


async def invalid(simulation: Simulation) -> None:
    await simulation.submit_and_settle(rollout={"replicas": 3})


async def queued(simulation: Simulation) -> None:
    await simulation.submit_and_settle()
    simulation.change(RAYJOBS, spec={"suspend": True})
    await simulation.settle()


async def starting(simulation: Simulation) -> None:
    await simulation.submit_starting()
    await simulation.settle()


async def unschedulable(simulation: Simulation) -> None:
    await starting(simulation)
    await simulation.pod_and_settle(1, "worker", unscheduled("3 no GPU"))


async def running(simulation: Simulation) -> None:
    await simulation.submit_running(backoffLimit=1, ttlSecondsAfterFinished=60)


async def head_not_ready(simulation: Simulation) -> None:
    await running(simulation)
    simulation.head(1, False, "ContainersNotReady")
    await simulation.settle()


async def edited(simulation: Simulation) -> None:
    await running(simulation)
    simulation.edit(seed=7)


async def waiting_for_the_next_attempt(simulation: Simulation) -> None:
    await edited(simulation)
    await simulation.settle()
    assert simulation.condition("Updated").reason == "NextAttempt"


async def edited_wrongly(simulation: Simulation) -> None:
    await running(simulation)
    await simulation.edit_and_settle(rollout={"replicas": 3})
    assert simulation.condition("Updated").reason == "InvalidSpec"


async def without_a_report(simulation: Simulation) -> None:
    await running(simulation)
    simulation.report(step=1)
    await simulation.after(3600)
    assert simulation.condition("ProgressStalled").status == "True"


async def suspending(simulation: Simulation) -> None:
    await running(simulation)
    simulation.report(step=5)
    await simulation.edit_and_settle(suspend=True)


async def suspended(simulation: Simulation) -> None:
    await running(simulation)
    await simulation.edit_and_settle(suspend=True)


async def suspended_from_the_start(simulation: Simulation) -> None:
    await simulation.submit_and_settle(suspend=True)


async def resumed(simulation: Simulation) -> None:
    await suspended(simulation)
    await simulation.edit_and_settle(suspend=False)


async def retrying(simulation: Simulation) -> None:
    await running(simulation)
    simulation.end(1, "FAILED", "AppFailed", "exit code 1")
    simulation.cluster.change(PODS, KEY[0], "red-a01-x1-head", metadata={"finalizers": ["example.com/slow"]})
    await simulation.settle()


async def succeeded(simulation: Simulation) -> None:
    await running(simulation)
    await simulation.end_and_settle(1)


async def succeeded_while_the_spec_was_invalid(simulation: Simulation) -> None:
    await edited_wrongly(simulation)
    await simulation.end_and_settle(1)


async def failed(simulation: Simulation) -> None:
    await simulation.submit_running(ttlSecondsAfterFinished=60)
    await simulation.end_and_settle(1, "FAILED", "AppFailed", "exit code 1")


def forbid_deletion(simulation: Simulation) -> None:
    simulation.refuse(Forbidden("jobs are kept here"), JOBS, "delete")


async def succeeded_and_kept(simulation: Simulation) -> None:
    await succeeded(simulation)
    forbid_deletion(simulation)
    await simulation.after(600)


async def failed_and_kept(simulation: Simulation) -> None:
    await failed(simulation)
    forbid_deletion(simulation)
    await simulation.after(600)


async def deleting(simulation: Simulation) -> None:
    await running(simulation)
    simulation.cluster.change(JOBS, *KEY, metadata={"finalizers": ["example.com/slow"]})
    simulation.cluster.remove(JOBS, *KEY)
    await simulation.settle()


EXPECTED: dict[Callable[[Simulation], Awaitable[None]], tuple[str, str]] = {
    not_seen: IN_PROGRESS,
    without_kuberay: IN_PROGRESS,
    invalid: FAILED,
    queued: IN_PROGRESS,
    starting: IN_PROGRESS,
    unschedulable: IN_PROGRESS,
    running: CURRENT,
    head_not_ready: IN_PROGRESS,
    edited: IN_PROGRESS,
    waiting_for_the_next_attempt: CURRENT,
    edited_wrongly: CURRENT,
    without_a_report: CURRENT,
    suspending: IN_PROGRESS,
    suspended: SUSPENDED,
    suspended_from_the_start: SUSPENDED,
    resumed: IN_PROGRESS,
    retrying: IN_PROGRESS,
    succeeded: CURRENT,
    succeeded_while_the_spec_was_invalid: CURRENT,
    failed: FAILED,
    succeeded_and_kept: ("InProgress", "Healthy"),
    failed_and_kept: FAILED,
    deleting: ("Terminating", "Progressing"),
}


def health(bodies: list[dict[str, Any]]) -> list[Health]:
    try:
        return find_health(bodies)
    except ToolMissing as error:
        leave_out(error)


def test_every_state_has_the_health_that_the_documentation_says(new_simulation: Any) -> None:
    bodies = []
    for scenario in EXPECTED:
        simulation = new_simulation()
        asyncio.run(scenario(simulation))
        bodies.append(simulation.cluster.get(JOBS, *KEY))
    health_of = dict(zip(EXPECTED, health(bodies), strict=True))
    assert {scenario.__name__: (shown.kstatus, shown.argo) for scenario, shown in health_of.items()} == {
        scenario.__name__: expected for scenario, expected in EXPECTED.items()
    }
    assert {body["status"].get("state") for body in bodies} == {None, *get_args(JobState)}
    assert health_of[unschedulable].argo_message.startswith("Starting: Unschedulable: pod red-a01-x1-worker: 3 no GPU")
    assert health_of[failed].argo_message.startswith("Failed: ApplicationError: attempt 1: ")
    assert health_of[failed].kstatus_message.startswith("attempt 1: ")
