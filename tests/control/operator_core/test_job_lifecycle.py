"""Lifecycle of a job: suspension, rejected children, invalid specs, deletion."""

from typing import Any

import pytest

from control.operator_core.pools import KEY
from omni_operator.api.status import UNSEEN
from omni_operator.cluster.errors import (
    ClusterError,
    Forbidden,
    NamespaceTerminating,
    QuotaExceeded,
    Refused,
    Unavailable,
)
from omni_operator.cluster.kinds import JOBS, NETWORK_POLICIES, PODS, RAYCLUSTERS, RAYJOBS, Kind


async def test_suspension_requests_a_checkpoint_and_resuming_starts_the_next_attempt(simulation: Any) -> None:
    await simulation.submit_running()
    assert simulation.report(step=5) == {}
    await simulation.settle()
    await simulation.edit_and_settle(suspend=True)
    assert simulation.condition("Suspended").reason == "CheckpointRequested"
    assert simulation.report(step=6) == {"checkpoint": True}
    await simulation.settle()
    assert simulation.attempts() == ["red-a01"]
    assert simulation.report("checkpoint", path="/ckpt/checkpoints/step_000006") == {}
    await simulation.settle()
    assert simulation.condition("Suspended").status == "True"
    assert simulation.attempts() == []
    assert not simulation.cluster.all(PODS)
    assert simulation.status().checkpoint.last == "step_000006"
    await simulation.after(3600)
    await simulation.edit_and_settle(suspend=False)
    assert simulation.attempts() == ["red-a02"]
    assert simulation.condition("Suspended").status == "False"
    assert simulation.condition("Updated").reason == "AsRequested"
    assert not simulation.status().failures
    assert {"Suspending", "Suspended", "Resumed", "CheckpointSaved"} <= set(simulation.event_reasons())
    assert simulation.event_reasons().count("Running") == 1, "a suspended job is Ready without pods"
    await simulation.run_and_settle(2)
    assert simulation.event_reasons().count("Running") == 2


async def test_suspension_waits_for_the_checkpoint_up_to_its_deadline(simulation: Any) -> None:
    await simulation.submit_running(suspendPolicy={"graceSeconds": 30})
    simulation.report(step=5)
    simulation.edit(suspend=True)
    await simulation.after(29)
    assert simulation.attempts() == ["red-a01"]
    await simulation.after(2)
    assert simulation.condition("Suspended").status == "True"


@pytest.mark.parametrize("asked", ["before", "after"])
async def test_an_operator_that_starts_again_waits_for_the_checkpoint_of_a_suspension(
    simulation: Any, asked: str
) -> None:
    """Also before the trainer, whose step may take long, reports to the new process."""
    await simulation.submit_running(suspendPolicy={"graceSeconds": 600})
    await simulation.report_and_settle(step=5)
    if asked == "before":
        await simulation.edit_and_settle(suspend=True)
    simulation.start_operator()
    simulation.edit(suspend=True)
    await simulation.after(60)
    assert simulation.attempts() == ["red-a01"]
    assert simulation.condition("Suspended").reason == "CheckpointRequested"
    assert simulation.report(step=6) == {"checkpoint": True}
    await simulation.report_and_settle("checkpoint", path="/ckpt/checkpoints/step_000006")
    assert simulation.condition("Suspended").status == "True"
    assert simulation.status().checkpoint.last == "step_000006"


@pytest.mark.parametrize("spec", [{}, {"suspendPolicy": {"mode": "Immediate"}}])
async def test_a_trainer_that_never_reported_is_suspended_at_once(simulation: Any, spec: dict[str, Any]) -> None:
    await simulation.submit_running(**spec)
    await simulation.edit_and_settle(suspend=True)
    assert simulation.condition("Suspended").status == "True"


async def test_a_suspension_that_is_withdrawn_in_time_changes_nothing(simulation: Any) -> None:
    await simulation.submit_running()
    simulation.report(step=5)
    await simulation.edit_and_settle(suspend=True)
    await simulation.edit_and_settle(suspend=False)
    assert simulation.attempts() == ["red-a01"]
    assert simulation.condition("Suspended").status == "False"
    assert simulation.condition("Ready").status == "True"


async def test_a_suspended_job_that_is_resumed_with_an_invalid_spec_continues_when_it_is_corrected(
    simulation: Any,
) -> None:
    await simulation.submit_running()
    await simulation.edit_and_settle(suspend=True)
    await simulation.edit_and_settle(suspend=False, rollout={"replicas": 3})
    assert (simulation.status().state, simulation.status().reason) == ("Pending", "InvalidSpec")
    assert "Resumed" not in simulation.event_reasons()
    await simulation.edit_and_settle(rollout={"replicas": 2})
    assert simulation.attempts() == ["red-a02"]
    assert simulation.status().failures == (), "the operator itself deleted the RayJob"
    assert simulation.event_reasons().count("Resumed") == 1


async def test_a_job_submitted_suspended_creates_nothing(simulation: Any) -> None:
    await simulation.submit_and_settle(suspend=True)
    assert simulation.condition("Suspended").status == "True"
    assert not simulation.attempts()
    await simulation.edit_and_settle(suspend=False)
    assert simulation.attempts() == ["red-a01"]


async def test_a_condition_reports_that_kuberay_is_missing_until_it_is_installed(simulation: Any) -> None:
    simulation.cluster.absent = {RAYJOBS}
    await simulation.submit_and_settle()
    for kind in ("Admitted", "Ready"):
        assert simulation.condition(kind).reason == "KubeRayNotInstalled"
    assert "install KubeRay" in simulation.condition("Ready").message
    assert "KubeRayNotInstalled" in simulation.event_reasons()
    assert (await simulation.requests_in(300))["create", "rayjobs"] <= 21
    simulation.cluster.absent = set()
    await simulation.after(31)
    assert simulation.attempts() == ["red-a01"]
    assert simulation.condition("Ready").reason == "Starting"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (QuotaExceeded("exceeded quota: gpus"), "QuotaExceeded"),
        (Refused("RayJob is invalid: spec.x"), "ChildRefused"),
        (NamespaceTerminating("being terminated"), "NamespaceTerminating"),
        (Forbidden('cannot create resource "rayjobs"'), "Forbidden"),
    ],
)
async def test_a_rejected_child_is_a_condition_and_is_retried_with_backoff(
    simulation: Any, error: ClusterError, reason: str
) -> None:
    simulation.refuse(error, RAYJOBS, "create")
    simulation.submit()
    await simulation.after(3600)
    ready = simulation.condition("Ready")
    assert (ready.reason, str(error) in ready.message) == (reason, True)
    # A namespace that is being deleted takes no events.
    assert (reason in simulation.event_reasons()) is not isinstance(error, NamespaceTerminating)
    assert simulation.cluster.counts()["create", "rayjobs"] < 25
    for number in range(10):  # nothing that was asked has changed
        simulation.cluster.change(JOBS, *KEY, metadata={"annotations": {"example.com/touched": str(number)}})
        await simulation.settle()
    assert not simulation.cluster.counts()
    simulation.allow()
    simulation.edit(seed=1)  # a change is tried at once
    await simulation.settle()
    assert simulation.attempts() == ["red-a01"]


async def test_an_invalid_spec_is_a_condition_and_can_be_corrected(simulation: Any) -> None:
    await simulation.submit_and_settle(rollout={"replicas": 3})
    assert simulation.condition("Admitted").reason == "InvalidSpec"
    assert "spec.rollout.replicas" in simulation.condition("Ready").message
    assert not simulation.attempts()
    assert len(simulation.status().conditions) == 14
    assert not await simulation.requests_in(600)
    await simulation.edit_and_settle(rollout={"replicas": 2})
    assert simulation.attempts() == ["red-a01"]
    await simulation.run_and_settle(1)
    await simulation.edit_and_settle(rollout={"replicas": 3})
    assert simulation.condition("Updated").reason == "InvalidSpec"
    assert simulation.condition("Ready").status == "True"  # what runs is left alone
    simulation.cluster.remove(JOBS, *KEY)
    await simulation.settle()
    assert simulation.cluster.get(JOBS, *KEY) is None


async def test_a_job_managed_by_another_controller_is_ignored(simulation: Any) -> None:
    simulation.submit(managedBy="kueue.x-k8s.io/multikueue")
    assert not await simulation.requests_in(3600)


async def test_an_unavailable_api_server_raises_for_the_worker_to_retry(simulation: Any) -> None:
    simulation.submit_and_watch()
    simulation.cluster.failures = lambda verb, kind, name: Unavailable("no answer")
    with pytest.raises(Unavailable):
        await simulation.reconcile()
    simulation.allow()
    await simulation.reconcile()
    await simulation.settle()
    assert simulation.attempts() == ["red-a01"]


async def test_a_finished_job_keeps_its_condition_and_its_cluster_is_deleted(simulation: Any) -> None:
    await simulation.submit_running()
    assert simulation.status().rollout.summary == "1/1"
    simulation.lose_head(1)
    await simulation.settle()
    failed = simulation.condition("Failed")
    assert failed.reason == "HeadLost"
    assert simulation.attempts() == []
    await simulation.after(3600)
    assert simulation.condition("Failed") == failed
    assert simulation.status().rollout.summary == "0/1", "the pods are gone"


async def test_retain_keeps_the_objects_of_a_failed_attempt(simulation: Any) -> None:
    await simulation.submit_running(cleanupPolicy="Retain")
    simulation.lose_head(1)
    await simulation.after(3600)
    assert simulation.attempts() == ["red-a01"]


async def test_a_rayjob_that_kuberay_refuses_is_deleted_because_it_holds_quota_of_a_queue(simulation: Any) -> None:
    await simulation.submit_and_settle()
    refused = {"jobDeploymentStatus": "ValidationFailed", "message": "RAY_REDIS_ADDRESS is set"}
    simulation.change(RAYJOBS, status=refused)
    await simulation.settle()
    assert simulation.verdict("Failed") == ("True", "InvalidConfig")
    assert simulation.attempts() == []


async def test_texts_of_a_spec_cannot_control_the_terminal_of_who_reads_the_status(simulation: Any) -> None:
    await simulation.submit_and_settle(
        trainer={"totalSteps": 10, "podTemplate": {"spec": {"\x1b]0;title\x07 \x9b2J": 1}}}
    )
    message = simulation.condition("Admitted").message
    assert "]0;title   2J: unknown field" in message
    assert message.isprintable()


EVERYTHING = (JOBS, RAYJOBS, RAYCLUSTERS, PODS, NETWORK_POLICIES)


async def test_a_job_is_deleted_at_once_and_leaves_nothing_without_a_request(simulation: Any) -> None:
    await simulation.submit_running()
    assert "finalizers" not in simulation.cluster.get(JOBS, *KEY)["metadata"]
    simulation.change(RAYJOBS, metadata={"finalizers": ["ray.io/rayjob-finalizer"]})
    await simulation.settle()
    simulation.cluster.counts()
    simulation.cluster.remove(JOBS, *KEY)
    assert simulation.cluster.get(JOBS, *KEY) is None
    await simulation.after(120)
    assert simulation.attempts() == ["red-a01"]  # held until KubeRay has stopped the Ray job
    simulation.change(RAYJOBS, metadata={"finalizers": []})
    await simulation.settle()
    assert not [kind for kind in EVERYTHING if simulation.cluster.all(kind)]
    assert not simulation.cluster.counts()


async def test_what_is_created_for_a_job_before_its_deletion_is_seen_goes_too(simulation: Any) -> None:
    simulation.submit_and_watch()
    simulation.frozen = {JOBS}
    simulation.cluster.remove(JOBS, *KEY)
    await simulation.reconcile()
    assert simulation.attempts() == ["red-a01"]
    assert simulation.cache.job(KEY) is None, "the write of the status found no job"
    created = simulation.cluster.counts()["create", "rayjobs"]
    await simulation.after(3600)
    assert not [kind for kind in EVERYTHING if simulation.cluster.all(kind)]
    assert (created, simulation.cluster.counts()["create", "rayjobs"]) == (1, 0), "not created again and again"


async def test_the_deletion_of_a_running_job_that_is_seen_late_starts_no_attempt(simulation: Any) -> None:
    await simulation.submit_running()
    simulation.frozen = {JOBS}
    simulation.cluster.remove(JOBS, *KEY)
    assert (await simulation.requests_in(3600))["create", "rayjobs"] == 0
    assert simulation.cache.job(KEY) is None
    simulation.frozen = set()
    await simulation.submit_and_settle()
    assert simulation.attempts() == ["red-a01"]
    assert simulation.status().failures == ()


async def test_a_recreated_job_is_a_different_job(simulation: Any) -> None:
    await simulation.submit_running()
    simulation.change(RAYCLUSTERS, metadata={"finalizers": ["slow"]})
    simulation.cluster.remove(JOBS, *KEY)
    await simulation.settle()
    assert simulation.cluster.get(JOBS, *KEY) is None
    await simulation.after(5)
    await simulation.submit_and_settle()
    assert simulation.condition("Ready").reason == "BetweenAttempts"  # both would write the same folder
    assert "all objects of the deleted job of this name" in simulation.condition("Ready").message
    simulation.change(RAYCLUSTERS, metadata={"finalizers": []})
    await simulation.settle()
    status = simulation.status()
    assert (status.attempts, status.failures) == (1, ())
    assert simulation.attempts() == ["red-a01"]
    assert status.children.ray_cluster is None


async def test_a_recreated_job_says_what_keeps_the_rayjob_of_the_deleted_one(simulation: Any) -> None:
    """Without KubeRay, nobody removes the finalizer, and the name of the first attempt stays taken."""
    await simulation.submit_running()
    simulation.change(RAYJOBS, metadata={"finalizers": ["ray.io/rayjob-finalizer"]})
    simulation.cluster.remove(JOBS, *KEY)
    await simulation.settle()
    simulation.submit()
    await simulation.after(3600)
    waits = simulation.condition("Ready")
    assert (simulation.status().state, waits.reason) == ("Pending", "BetweenAttempts")
    assert waits.message.endswith("garbage collection deletes it when no finalizer keeps it any more")
    simulation.change(RAYJOBS, metadata={"finalizers": []})
    await simulation.after(60)
    assert simulation.status().state == "Starting" and simulation.attempts() == ["red-a01"]


async def test_the_pauses_of_a_job_end_with_it_and_not_those_of_its_name(simulation: Any) -> None:
    """Recreated before a pass saw the deletion: both jobs have generation 1."""
    simulation.submit()
    simulation.refuse(Refused("denied by a policy"), RAYJOBS)
    await simulation.after(1800)
    assert simulation.condition("Ready").reason == "ChildRefused"
    simulation.allow()
    at = simulation.now
    simulation.cluster.remove(JOBS, *KEY)
    await simulation.submit_and_settle()
    assert (simulation.attempts(), simulation.now) == (["red-a01"], at)
    assert simulation.condition("Ready").reason == "Starting"


async def test_a_job_that_is_recreated_during_a_pass_gets_nothing_of_the_deleted_ones(simulation: Any) -> None:
    """Neither has a status yet, and the RayJob that the pass creates has the deleted job as its owner."""

    def recreate(verb: str, kind: Kind, name: str) -> None:
        if kind == RAYJOBS:
            simulation.allow()
            simulation.cluster.remove(JOBS, *KEY)
            simulation.submit_and_watch()

    simulation.submit_and_watch()
    simulation.cluster.failures = recreate
    await simulation.reconcile()
    assert simulation.cluster.get(JOBS, *KEY)["status"] == UNSEEN, "what the pass decided is about the deleted job"
    await simulation.after(60)
    rayjob = simulation.cluster.get(RAYJOBS, KEY[0], "red-a01")
    assert rayjob["metadata"]["ownerReferences"][0]["uid"] == simulation.cluster.get(JOBS, *KEY)["metadata"]["uid"]
    assert (simulation.status().attempts, simulation.status().failures) == (1, ())
    assert "AttemptFailed" not in simulation.event_reasons()


async def test_a_deletion_of_pods_that_is_refused_is_named_until_it_is_allowed(simulation: Any) -> None:
    """During a suspension, and before the next attempt."""
    refusal = Refused("denied by a policy"), RAYJOBS, "delete"
    await simulation.submit_running(suspendPolicy={"mode": "Immediate"}, backoffLimit=1)
    simulation.refuse(*refusal)
    simulation.edit(suspend=True)
    await simulation.after(60)
    ready = simulation.condition("Ready")
    suspended = simulation.condition("Suspended")
    assert (ready.status, ready.reason, suspended.status) == ("False", "ChildRefused", "Unknown")
    assert "denied by a policy" in ready.message
    assert "ChildRefused" in simulation.event_reasons()
    simulation.allow()
    await simulation.after(300)
    assert (simulation.condition("Ready").reason, simulation.condition("Suspended").status) == ("Suspended", "True")
    await simulation.edit_and_settle(suspend=False)
    simulation.run(2)
    simulation.refuse(*refusal)
    simulation.lose_head(2)
    await simulation.after(60)
    assert simulation.condition("Ready").reason == "ChildRefused"
    simulation.allow()
    await simulation.after(300)
    assert simulation.attempts() == ["red-a03"]
