"""A job that is edited before its trainer runs, and stored specs that break a rule of this version."""

from typing import Any

import pytest

from control.api.job_documents import SMALLEST
from control.operator_core.pools import KEY, PLACES, Queue, spec_of, unscheduled
from e2e.faulty_cluster import Fault
from omni_operator.cluster.errors import Forbidden
from omni_operator.cluster.kinds import JOBS, NETWORK_POLICIES, PODS, RAYCLUSTERS, RAYJOBS
from omni_operator.plan import ClusterSettings
from omni_operator.plan.pod_policy import PodPolicy
from omni_operator.reconcile.spec_cache import InvalidSpec, SpecCache

RED = "red-a01"
QUOTA = 'pods "red-a01-x1-head" is forbidden: failed quota: q: must specify limits.cpu for: ray; limits.memory for: ray'
POLICY = 'admission webhook "policies.example.com" denied the request: label team is required'
LIMITS = {"limits": {"cpu": "2", "memory": "8Gi"}}


def refused(message: str) -> dict[str, Any]:
    condition = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": message}
    return {"status": {"conditions": [condition]}}


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
    reason, trouble = CAUSES[cause]
    if "cluster" in trouble:
        simulation.change(RAYCLUSTERS, **trouble["cluster"])
        for role in ("head", "worker"):
            simulation.cluster.remove(PODS, KEY[0], f"{RED}-x1-{role}")
    if "pod" in trouble:
        simulation.pod(1, "worker", trouble["pod"])
    if "rayjob" in trouble:
        simulation.change(RAYJOBS, **trouble["rayjob"])
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
    await simulation.run_and_settle(2)
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
    simulation.change(RAYCLUSTERS, **refused(QUOTA))
    simulation.edit(**EDITS["limits"])
    await simulation.after(600)
    assert (simulation.attempts(), simulation.condition("Updated").reason) == ([RED], "NextAttempt")


@pytest.mark.parametrize("pool", PLACES)
async def test_pods_that_could_be_replaced_while_the_trainer_runs_are_repaired_too(simulation: Any, pool: str) -> None:
    await simulation.submit_starting(**spec_of(pool))
    body = simulation.cluster.get(RAYJOBS, KEY[0], RED)
    simulation.change(RAYCLUSTERS, spec=body["spec"]["rayClusterSpec"], **refused(QUOTA))
    await simulation.settle()
    paused = {"diffusionrl.io/pause-rolling-update": "true"}
    simulation.cluster.change(JOBS, *KEY, metadata={"annotations": paused})
    simulation.edit(**spec_of(pool, resources=LIMITS))
    await simulation.after(60)
    assert (simulation.attempts(), simulation.condition("Updated").reason) == ([RED], "RollingUpdatePaused")
    simulation.cluster.change(JOBS, *KEY, metadata={"annotations": dict.fromkeys(paused, "false")})
    await simulation.after(60)
    assert (simulation.attempts(), simulation.condition("Updated").status) == (["red-a02"], "True")


async def test_a_queue_that_does_not_exist_is_repaired_by_the_label_of_the_job(queue: Queue) -> None:
    """A label is no part of the spec, and changes no generation."""
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
    simulation.refuse(Forbidden("kept"), RAYJOBS, "delete")
    simulation.edit(**EDITS["label"])
    await simulation.after(60)
    assert (simulation.attempts(), simulation.condition("Ready").reason) == ([RED], "Forbidden")
    simulation.allow()
    await simulation.after(600)
    assert simulation.attempts() == ["red-a02"]


async def test_a_resumed_job_that_still_has_pods_waits_for_them_without_a_failure(simulation: Any) -> None:
    await simulation.submit_running(suspendPolicy={"mode": "Immediate"})
    simulation.cluster.change(PODS, KEY[0], f"{RED}-x1-head", metadata={"finalizers": ["kubelet"]})
    await simulation.edit_and_settle(suspend=True)
    simulation.edit(suspend=False)
    await simulation.after(60)
    assert (simulation.attempts(), simulation.status().failures) == ([], ())
    await simulation.after(600)
    assert simulation.attempts() == ["red-a02"]


# The rule that cps adds no noise in the last step; a rule of one field; a field that is not there any more.
BROKEN: dict[str, dict[str, Any]] = {
    "rule": {
        "rollout": {
            "replicas": 2,
            "pipeline": {"steps": 10},
            "sampler": {"type": "cps", "noiseLevel": 0.8, "window": {"start": 5, "end": 10, "size": 2}},
        }
    },
    "field": {"seed": -1},
    "gone": {"formerField": {"a": [1]}},
}
BRIGHTNESS = {"name": "brightness"}


@pytest.fixture(params=BROKEN)
async def running(simulation: Any, request: pytest.FixtureRequest) -> Any:
    """A job that runs, whose stored spec breaks a rule since the operator was upgraded."""
    await simulation.submit_running(ttlSecondsAfterFinished=60, backoffLimit=1)
    simulation.edit(**BROKEN[request.param])
    simulation.start_operator()
    await simulation.settle()
    assert simulation.verdict("Updated") == ("False", "InvalidSpec")
    return simulation


async def test_its_success_is_recorded_and_it_is_deleted_at_its_ttl(running: Any) -> None:
    before = running.verdict("AcceleratorChosen")
    await running.end_and_settle(1)
    assert running.status().is_true("Succeeded")
    assert running.verdict("AcceleratorChosen") == before
    running.start_operator()
    await running.after(61)
    assert running.cluster.get(JOBS, *KEY) is None


async def test_it_can_be_suspended_and_starts_again_when_the_spec_is_corrected(running: Any) -> None:
    running.edit(suspend=True)
    await running.after(600)
    assert (running.condition("Suspended").status, running.attempts()) == ("True", [])
    running.edit(suspend=False)
    await running.after(600)
    assert (running.condition("Ready").reason, running.attempts()) == ("InvalidSpec", [])
    await running.edit_and_settle(seed=0, formerField=None, rollout={"replicas": 2, "sampler": None, "pipeline": None})
    assert running.attempts() == ["red-a02"]


async def test_a_job_that_a_stricter_policy_refuses_is_suspended_and_says_why_it_does_not_resume(
    simulation: Any,
) -> None:
    await simulation.submit_running()
    simulation.reconciler.settings = ClusterSettings(
        image="rollout:1", pod_policy=PodPolicy.model_validate({"serviceAccounts": ["ours"]})
    )
    simulation.edit(suspend=True)
    await simulation.after(600)
    assert (simulation.condition("Suspended").status, simulation.attempts()) == ("True", [])
    await simulation.edit_and_settle(suspend=False)
    assert (simulation.condition("Ready").reason, simulation.attempts()) == ("InvalidSpec", [])


async def test_a_job_is_not_called_invalid_any_more_when_the_policy_allows_it_again(simulation: Any) -> None:
    await simulation.submit_running()
    strict = PodPolicy.model_validate({"serviceAccounts": ["ours"]})
    for policy, reason in ((strict, "InvalidSpec"), (PodPolicy(), "AsRequested")):
        simulation.start_operator()
        simulation.reconciler.settings = ClusterSettings(image="rollout:1", pod_policy=policy)
        await simulation.settle()
        assert simulation.condition("Updated").reason == reason
    assert simulation.attempts() == ["red-a01"]


async def test_a_failure_is_recorded_and_no_other_attempt_starts(running: Any) -> None:
    running.lose_head(1)
    await running.after(600)
    assert [failure.reason for failure in running.status().failures] == ["HeadLost"]
    assert (running.condition("Ready").reason, running.attempts()) == ("InvalidSpec", [])
    assert running.cluster.get(RAYCLUSTERS, KEY[0], "red-a01-x1") is None


async def test_its_pods_and_policy_stay_as_they_are(running: Any) -> None:
    """Its valid fields may say less than the pods have; they are no reason to change these."""
    before = running.cluster.all(NETWORK_POLICIES) + running.cluster.all(RAYCLUSTERS)
    requests = await running.requests_in(3600)
    assert running.cluster.all(NETWORK_POLICIES) + running.cluster.all(RAYCLUSTERS) == before
    assert running.attempts() == ["red-a01"]
    assert {kind for _, kind in requests} <= {"diffusionrljobs", "events"}


@pytest.mark.parametrize(
    ("changes", "left"),
    [
        ({"suspend": True, "seed": -1}, True),
        ({"suspend": True, "seed": -1, "backoffLimit": "x", "podTemplate": 7}, True),
        ({"suspend": True, "reward": {"scorers": [{"name": "color"}, {"name": 1}, {"nome": "x"}, BRIGHTNESS]}}, True),
        ({"suspend": True, "data": {"train": [*["p.jsonl"] * 9, 1, 2]}}, True),
        ({"suspend": True, "data": {"train": [1, *["p.jsonl"] * 8, 2, 3, 4]}}, True),
        ({"suspend": True, "model": 7}, False),
        ({"suspend": True, "data": {}}, False),
    ],
)
def test_valid_fields_count_as_far_as_the_job_can_be_read_without_the_others(
    changes: dict[str, Any], left: bool
) -> None:
    spec = {**SMALLEST["spec"], **changes}
    meta = {"namespace": KEY[0], "name": KEY[1], "uid": "u", "generation": 1}
    parsed = SpecCache().get(KEY, {**SMALLEST, "metadata": meta, "spec": spec}, ClusterSettings(image="rollout:1"))
    assert isinstance(parsed, InvalidSpec)
    assert (parsed.job is not None and parsed.job.spec.suspend) == left
    if parsed.job is not None:
        valid = [path for path in spec["data"]["train"] if isinstance(path, str)]
        assert [str(path) for path in parsed.job.spec.data.train] == valid, "no more is left out than what is invalid"
