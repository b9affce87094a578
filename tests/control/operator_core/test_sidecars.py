"""Containers of a pod that are not Ray's are shown, and decide nothing once Ray's container has started."""

from typing import Any

import pytest

from control.operator_core.pools import KEY, Pools
from omni_operator.client.explanation import Surroundings, explain
from omni_operator.cluster.cache.object_parser import parse_pod
from omni_operator.cluster.kinds import PODS, RAYCLUSTERS

RUNNING: dict[str, Any] = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
RAY = {"name": "ray", "ready": True, "state": RUNNING}
SIDECAR = "SidecarNotRunning"


def end(code: int, reason: str = "Error", message: str = "bad output plugin") -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason, "message": message}}


def wait(reason: str) -> dict[str, Any]:
    return {"waiting": {"reason": reason, "message": "said"}}


def container(name: str = "agent", restarts: int = 0, *, last: Any = None, **state: Any) -> dict[str, Any]:
    return {"name": name, "ready": False, "restartCount": restarts, "state": state, "lastState": last or {}}


def not_ready(*containers: dict[str, Any], init: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    """Status of a pod that runs, of which the kubelet says that not all containers are ready."""
    condition = {"type": "Ready", "status": "False", "reason": "ContainersNotReady"}
    return {
        "phase": "Running",
        "conditions": [condition],
        "containerStatuses": [*containers],
        "initContainerStatuses": [*init],
    }


CRASHING = container(restarts=9, last=end(1), **wait("CrashLoopBackOff"))
PODS_WITH_TROUBLE = {
    "native sidecar": (not_ready(RAY, init=(CRASHING,)), "container agent ended with exit code 1: bad output plugin"),
    "restarting": (not_ready(RAY, CRASHING), "container agent ended with exit code 1: bad output plugin"),
    "first container": (not_ready(CRASHING, RAY), "container agent ended with exit code 1"),
    "classic, done": (not_ready(RAY, container(**end(0, message=""))), "container agent ended with exit code 0"),
    "classic, failed": (not_ready(RAY, container(**end(3))), "container agent ended with exit code 3"),
    "killed": (not_ready(RAY, container(**end(137, "OOMKilled", ""))), "container agent ended with exit code 137"),
    "no image": (not_ready(RAY, container(**wait("ErrImagePull"))), "container agent: ErrImagePull: said"),
}


@pytest.mark.parametrize("trouble", PODS_WITH_TROUBLE)
async def test_a_training_goes_on_whatever_becomes_of_a_container_that_is_not_rays(
    simulation: Any, trouble: str
) -> None:
    """KubeRay counts such pods as not ready, the head's too."""
    await simulation.submit_running()
    simulation.report(step=3)
    status, reason = PODS_WITH_TROUBLE[trouble]
    for role in ("head", "worker"):
        simulation.pod(1, role, status)
    simulation.head(1, False, "ContainersNotReady")
    simulation.change(RAYCLUSTERS, status={"readyWorkerReplicas": 0})
    await simulation.settle()
    simulation.report("warning", step=4, reason="RewardConstant", message="all 0")
    await simulation.after(500)
    status = simulation.status()
    assert (status.state, status.failures, simulation.condition("Ready").status) == ("Running", (), "True")
    assert status.rollout.ready == status.rollout.desired
    (warning,) = (entry for entry in status.warnings if entry.reason == SIDECAR)
    assert reason in warning.message and "pod red-a01-x1-head" in warning.message and warning.time
    assert "RewardConstant" in {entry.reason for entry in status.warnings}
    assert simulation.event_reasons().count(SIDECAR) == 1
    pods = tuple(parse_pod(body) for body in simulation.cluster.all(PODS))
    text = explain("red", status, None, around=Surroundings(pods))
    assert f"{SIDECAR}: {reason}" in text and "What to do: correct the container that the message names" in text


async def test_a_sidecar_that_keeps_restarting_costs_few_writes(simulation: Any) -> None:
    await simulation.submit_running()
    await simulation.pod_and_settle(1, "worker", not_ready(RAY, CRASHING))
    simulation.cluster.counts()
    for restarts in range(10, 20):
        for state in (RUNNING, end(1), wait("CrashLoopBackOff")):
            again = container(restarts=restarts, last=end(1), **state)
            simulation.pod(1, "worker", not_ready(RAY, again))
            await simulation.after(20)
    assert not simulation.cluster.counts()


@pytest.mark.parametrize("ended", ["sidecar", "init container"])
@pytest.mark.parametrize(
    ("code", "why", "text"), [(137, "OOMKilled", ""), (1, "Error", "NVRM: Xid (PCI:0000:3b:00): 79")]
)
async def test_how_another_container_ended_is_no_reason_of_a_later_failure(
    simulation: Any, ended: str, code: int, why: str, text: str
) -> None:
    rules = [{"onReasons": ["OutOfMemory", "AcceleratorFault"], "action": "RetryIgnoreLimit"}]
    await simulation.submit_running(failurePolicy={"rules": rules})
    before = container(last=end(code, why, text), **RUNNING)
    simulation.pod(1, "worker", not_ready(RAY, *([before] if ended == "sidecar" else []), init=(before,)))
    await simulation.after(60)
    await simulation.pod_and_settle(
        1, "worker", not_ready(container("ray", **end(1, message="")), before, init=(before,))
    )
    simulation.end(1, "FAILED", "AppFailed", "exit code 1")
    await simulation.after(600)
    assert simulation.condition("Failed").reason == "ApplicationError"


async def test_how_rays_container_ended_is_a_reason_next_to_a_sidecar_that_ended(simulation: Any) -> None:
    await simulation.submit_running()
    killed = container("ray", **end(137, "OOMKilled", ""))
    await simulation.pod_and_settle(1, "worker", not_ready(CRASHING, killed, init=(container("wait", **end(0)),)))
    await simulation.end_and_settle(1, "FAILED", "AppFailed", "exit code 1")
    assert simulation.condition("Failed").reason == "OutOfMemory"
    assert "container ray of pod red-a01-x1-worker" in simulation.condition("Failed").message


async def test_an_attempt_that_waits_for_a_sidecar_says_so_and_can_be_repaired(simulation: Any) -> None:
    """Ray's container runs, but KubeRay starts no training before all containers are ready."""
    await simulation.submit_starting()
    simulation.pod(1, "worker", not_ready(RAY, container(**wait("ErrImagePull"))))
    await simulation.after(3600)
    assert (simulation.status().state, simulation.condition("Ready").reason) == ("Starting", SIDECAR)
    assert "container agent: ErrImagePull" in simulation.condition("Ready").message
    assert simulation.event_reasons().count(SIDECAR) == 1
    simulation.edit(trainer={"podTemplate": {"metadata": {"annotations": {"inject": "false"}}}})
    await simulation.after(60)
    assert simulation.attempts() == ["red-a02"]


@pytest.mark.parametrize(
    ("containers", "reason"),
    [
        ((container("one", 4, **wait("CrashLoopBackOff")),), "StartFailed"),
        ((container("one", 9, **RUNNING), container("two", 1, **wait("CrashLoopBackOff"))), "NoFailure"),
    ],
    ids=["one that restarts", "another one restarted"],
)
async def test_before_ray_starts_a_container_that_it_waits_for_decides_by_its_own_restarts(
    simulation: Any, containers: tuple[dict[str, Any], ...], reason: str
) -> None:
    await simulation.submit_starting()
    await simulation.pod_and_settle(
        1, "worker", not_ready(container("ray", **wait("PodInitializing")), init=containers)
    )
    assert simulation.condition("Failed").reason == reason


async def test_a_head_on_a_lost_node_is_lost_although_its_containers_were_ready(simulation: Any) -> None:
    """The node's controller says it, and the states of the containers stay as they were."""
    await simulation.submit_running()
    pod = {"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}], "containerStatuses": [RAY]}
    simulation.pod(1, "head", pod)
    simulation.head(1, False, "Unknown")
    await simulation.after(61)
    assert simulation.condition("Failed").reason == "HeadLost"


async def test_rollout_pods_with_a_failed_sidecar_count_as_ready(simulation: Any, pools: Pools) -> None:
    await pools.run()
    ready = simulation.status().rollout.ready
    for body in simulation.cluster.all(PODS):
        simulation.cluster.change(PODS, KEY[0], body["metadata"]["name"], status=not_ready(RAY, CRASHING))
    await simulation.settle()
    assert (simulation.condition("Ready").status, simulation.status().rollout.ready) == ("True", ready)
