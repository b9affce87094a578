"""A job that is edited before its trainer runs gets an attempt with the new spec at once."""

from __future__ import annotations

from typing import Any

import pytest

from control.operator_core.pools import Pools
from control.operator_core.queue import KEY, ROLLOUT, Queue
from e2e.faulty_cluster import Fault
from omni_operator.client.explanation import explain
from omni_operator.cluster.errors import Forbidden
from omni_operator.cluster.kinds import JOBS, PODS, RAYCLUSTERS, RAYJOBS

RED = "red-a01"
QUOTA = 'pods "red-a01-x1-head" is forbidden: failed quota: q: must specify limits.cpu for: ray; limits.memory for: ray'
POLICY = 'admission webhook "policies.example.com" denied the request: label team is required'
LIMITS = {"limits": {"cpu": "2", "memory": "8Gi"}}


def refused(message: str) -> dict[str, Any]:
    condition = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": message}
    return {"status": {"conditions": [condition]}}


def unscheduled(message: str) -> dict[str, Any]:
    return {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}]}


def waits(reason: str, name: str = "ray", kind: str = "containerStatuses") -> dict[str, Any]:
    return {kind: [{"name": name, "restartCount": 1, "state": {"waiting": {"reason": reason, "message": "said"}}}]}


# Why an attempt does not run: the reason in the status, and what the cluster, the pod or the RayJob says.
CAUSES: dict[str, tuple[str, dict[str, Any]]] = {
    "quota": ("QuotaExceeded", {"cluster": refused(QUOTA)}),
    "policy": ("PodsRefused", {"cluster": refused(POLICY)}),
    "no node": ("Unschedulable", {"pod": unscheduled("0/3 nodes: 3 no GPU")}),
    "no claim": ("ClaimNotFound", {"pod": unscheduled('persistentvolumeclaim "ckpt" not found')}),
    "no volume": ("ClaimNotBound", {"pod": unscheduled("pod has unbound immediate PersistentVolumeClaims")}),
    "no secret": ("CreateContainerConfigError", {"pod": waits("CreateContainerConfigError")}),
    "no image": ("ImagePullBackOff", {"pod": waits("ErrImagePull")}),
    "init container": ("Starting", {"pod": waits("CrashLoopBackOff", "download", "initContainerStatuses")}),
    "queue": ("Queued", {"rayjob": {"spec": {"suspend": True}, "status": {"jobDeploymentStatus": "Suspended"}}}),
    "pod lost": ("Starting", {"rayjob": {"status": {"jobDeploymentStatus": "Running", "jobStatus": "PENDING"}}}),
}
EDITS: dict[str, dict[str, Any]] = {
    "limits": {"head": {"resources": LIMITS}},
    "label": {"head": {"podTemplate": {"metadata": {"labels": {"team": "vision"}}}}},
    "image": {"runtime": {"image": "mine:2", "rayVersion": "2.50.0"}},
    "claim": {"checkpoint": {"claimName": "other"}},
    "accelerators": {
        "trainer": {"totalSteps": 10, "accelerator": {"vendor": "NVIDIA", "count": 1}},
        "rollout": {"replicas": 1},
    },
    "steps": {"trainer": {"totalSteps": 20, "accelerator": {"vendor": "NVIDIA", "count": 2}}},
}


async def stuck(simulation: Any, cause: str, **job: Any) -> None:
    """A job whose first attempt does not run."""
    await simulation.submit_starting(**job)
    reason, said = CAUSES[cause]
    if "cluster" in said:
        simulation.cluster.change(RAYCLUSTERS, KEY[0], f"{RED}-x1", **said["cluster"])
        for role in ("head", "worker"):
            simulation.cluster.remove(PODS, KEY[0], f"{RED}-x1-{role}")
    if "pod" in said:
        simulation.pod(1, "worker", said["pod"])
    if "rayjob" in said:
        simulation.cluster.change(RAYJOBS, KEY[0], RED, **said["rayjob"])
    await simulation.settle()
    assert simulation.condition("Ready").reason == reason


@pytest.mark.parametrize(
    ("cause", "edit"),
    [*((cause, "limits") for cause in CAUSES), *(("quota", edit) for edit in EDITS if edit != "limits")],
)
async def test_an_attempt_that_does_not_run_is_replaced_when_the_job_is_edited(
    simulation: Any, cause: str, edit: str
) -> None:
    await stuck(simulation, cause)
    simulation.edit(**EDITS[edit])
    await simulation.after(2)
    assert simulation.attempts() == ["red-a02"]
    assert (simulation.condition("Updated").status, simulation.condition("Ready").reason) == ("True", "Starting")
    status = simulation.status()
    assert (status.attempts, status.failures, status.failures_counted) == (2, (), 0)
    assert "AttemptFailed" not in simulation.event_reasons() and "AttemptCreated" in simulation.event_reasons()
    simulation.run(2)
    await simulation.settle()
    assert simulation.status().state == "Running"
    await simulation.after(3600)
    assert simulation.attempts() == ["red-a02"]


@pytest.mark.parametrize(
    "edit",
    [{"backoffLimit": 3}, {"preRunningDeadlineSeconds": 7200}, {"ttlSecondsAfterFinished": 60}, {"backoffLimit": -1}],
    ids=["limit", "deadline", "ttl", "invalid"],
)
async def test_an_edit_that_makes_no_other_attempt_replaces_none(simulation: Any, edit: dict[str, Any]) -> None:
    await stuck(simulation, "quota")
    simulation.edit(**edit)
    await simulation.after(600)
    assert simulation.attempts() == ["red-a01"]


async def test_an_attempt_that_runs_is_not_replaced_while_a_pod_of_it_is_refused(simulation: Any) -> None:
    await simulation.submit_running()
    simulation.cluster.change(RAYCLUSTERS, KEY[0], f"{RED}-x1", **refused(QUOTA))
    simulation.edit(**EDITS["limits"])
    await simulation.after(600)
    assert (simulation.attempts(), simulation.condition("Updated").reason) == ([RED], "NextAttempt")


@pytest.mark.parametrize("group", ["rollout", "reward"])
async def test_pods_that_could_be_replaced_while_the_trainer_runs_are_repaired_too(
    simulation: Any, pools: Pools, group: str
) -> None:
    judge = {"base": "owner/judge", "placement": "Separate", "replicas": 1}
    reward = {"scorers": [{"name": "genrm_ocr"}], "model": judge}
    await simulation.submit_starting(rollout=ROLLOUT, reward=reward)
    body = simulation.cluster.get(RAYJOBS, KEY[0], RED)
    simulation.cluster.change(RAYCLUSTERS, KEY[0], f"{RED}-x1", spec=body["spec"]["rayClusterSpec"], **refused(QUOTA))
    await simulation.settle()
    more = {"resources": LIMITS}
    paused = {"diffusionrl.io/pause-rolling-update": "true"}
    simulation.cluster.change(JOBS, *KEY, metadata={"annotations": paused})
    given = (
        {"rollout": {**ROLLOUT, **more}} if group == "rollout" else {"reward": {**reward, "model": {**judge, **more}}}
    )
    simulation.edit(**given)
    await simulation.after(60)
    assert (simulation.attempts(), simulation.condition("Updated").reason) == ([RED], "RollingUpdatePaused")
    simulation.cluster.change(JOBS, *KEY, metadata={"annotations": dict.fromkeys(paused, "false")})
    await simulation.after(60)
    assert (simulation.attempts(), simulation.condition("Updated").status) == (["red-a02"], "True")


async def test_a_queue_that_does_not_exist_is_repaired_by_the_label_of_the_job(simulation: Any) -> None:
    """A label is no part of the spec, and changes no generation."""
    queue = Queue(simulation)
    await queue.submit()
    queue.simulation.cluster.change(JOBS, *KEY, metadata={"labels": {"kueue.x-k8s.io/queue-name": "team-b"}})
    await queue.simulation.after(60)
    (name,) = queue.simulation.attempts()
    assert name == "red-a02"
    assert queue.rayjob(name)["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-b"


async def test_it_waits_until_the_pods_of_the_attempt_before_are_gone_but_not_for_ever(simulation: Any) -> None:
    await stuck(simulation, "no node")
    await simulation.after(3600)
    simulation.cluster.change(PODS, KEY[0], f"{RED}-x1-head", metadata={"finalizers": ["kubelet"]})
    simulation.edit(**EDITS["label"])
    await simulation.after(540)
    assert (simulation.attempts(), simulation.status().state) == ([], "Pending")
    assert "attempt 2 starts when all objects of attempt 1 are deleted" in simulation.condition("Ready").message
    await simulation.after(120)
    assert simulation.attempts() == ["red-a02"]


@pytest.mark.parametrize("fault", [fault for fault in Fault if fault is not Fault.REJECTED])
async def test_a_fault_at_any_write_of_a_replacement_makes_it_no_failure(new_simulation: Any, fault: Fault) -> None:
    """Killed, or without an answer: the status says that the attempt is replaced before it is deleted."""
    for number in range(12):
        simulation = new_simulation()
        writes = iter(range(100))
        await stuck(simulation, "policy")
        simulation.edit(**EDITS["label"])
        simulation.fault = lambda write, writes=writes, number=number: fault if next(writes) == number else None
        await simulation.after(900)
        assert (simulation.attempts(), simulation.status().failures) == (["red-a02"], ()), number


async def test_a_refused_deletion_of_the_attempt_is_named_and_tried_again(simulation: Any) -> None:
    await stuck(simulation, "policy")
    simulation.cluster.failures = lambda verb, kind, name: Forbidden("kept") if verb == "delete" else None
    simulation.edit(**EDITS["label"])
    await simulation.after(60)
    assert (simulation.attempts(), simulation.condition("Ready").reason) == ([RED], "Forbidden")
    simulation.cluster.failures = lambda verb, kind, name: None
    await simulation.after(600)
    assert simulation.attempts() == ["red-a02"]


async def test_a_resumed_job_that_still_has_pods_waits_for_them_without_a_failure(simulation: Any) -> None:
    await simulation.submit_running(suspendPolicy={"mode": "Immediate"})
    simulation.cluster.change(PODS, KEY[0], f"{RED}-x1-head", metadata={"finalizers": ["kubelet"]})
    simulation.edit(suspend=True)
    await simulation.settle()
    simulation.edit(suspend=False)
    await simulation.after(60)
    assert (simulation.attempts(), simulation.status().failures) == ([], ())
    await simulation.after(600)
    assert simulation.attempts() == ["red-a02"]


async def test_why_tells_that_a_repair_is_invalid_or_waits_for_the_next_attempt(simulation: Any) -> None:
    await stuck(simulation, "no node")
    simulation.cluster.change(RAYCLUSTERS, KEY[0], f"{RED}-x1", **refused(QUOTA))
    simulation.pod(1, "worker", {"conditions": []})
    await simulation.settle()
    assert "What to do: set what the message says must be specified in resources" in explain(
        "red", simulation.status(), None
    )
    simulation.edit(backoffLimit=-1)
    await simulation.settle()
    said = explain("red", simulation.status(), None)
    assert "QuotaExceeded" in said and "InvalidSpec: spec.backoffLimit" in said
    simulation.edit(backoffLimit=0)
    await simulation.settle()
    simulation.run(1)
    await simulation.settle()
    assert "Nothing holds it" in explain("red", simulation.status(), None)
    simulation.edit(**EDITS["steps"])
    await simulation.settle()
    said = explain("red", simulation.status(), None)
    assert "Updated is False" in said and "NextAttempt" in said and "suspend and resume the job" in said
