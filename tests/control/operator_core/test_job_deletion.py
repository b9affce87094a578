"""Deletion of a job: what goes with it, and what a new job of its name gets."""

from __future__ import annotations

from typing import Any

from control.operator_core.pools import KEY
from omni_operator.api.status import UNSEEN
from omni_operator.cluster.errors import Refused
from omni_operator.cluster.kinds import JOBS, NETWORK_POLICIES, PODS, RAYCLUSTERS, RAYJOBS, Kind

EVERYTHING = (JOBS, RAYJOBS, RAYCLUSTERS, PODS, NETWORK_POLICIES)


async def test_a_job_is_deleted_at_once_and_leaves_nothing_without_a_request(simulation: Any) -> None:
    await simulation.submit_running()
    assert "finalizers" not in simulation.cluster.get(JOBS, *KEY)["metadata"]
    simulation.cluster.change(RAYJOBS, KEY[0], "red-a01", metadata={"finalizers": ["ray.io/rayjob-finalizer"]})
    await simulation.settle()
    simulation.cluster.counts()
    simulation.cluster.remove(JOBS, *KEY)
    assert simulation.cluster.get(JOBS, *KEY) is None
    await simulation.after(120)
    assert simulation.attempts() == ["red-a01"]  # held until KubeRay has stopped the Ray job
    simulation.cluster.change(RAYJOBS, KEY[0], "red-a01", metadata={"finalizers": []})
    await simulation.settle()
    assert not [kind for kind in EVERYTHING if simulation.cluster.all(kind)]
    assert not simulation.cluster.counts()


async def test_what_is_created_for_a_job_before_its_deletion_is_seen_goes_too(simulation: Any) -> None:
    simulation.submit()
    simulation.watch()
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
    simulation.cluster.counts()
    await simulation.after(3600)
    assert simulation.cache.job(KEY) is None
    assert simulation.cluster.counts()["create", "rayjobs"] == 0
    simulation.frozen = set()
    simulation.submit()
    await simulation.settle()
    assert simulation.attempts() == ["red-a01"]
    assert simulation.status().failures == ()


async def test_a_recreated_job_is_a_different_job(simulation: Any) -> None:
    await simulation.submit_running()
    simulation.cluster.change(RAYCLUSTERS, KEY[0], "red-a01-x1", metadata={"finalizers": ["slow"]})
    simulation.cluster.remove(JOBS, *KEY)
    await simulation.settle()
    assert simulation.cluster.get(JOBS, *KEY) is None
    await simulation.after(5)
    simulation.submit()
    await simulation.settle()
    assert simulation.condition("Ready").reason == "BetweenAttempts"  # both would write the same folder
    assert "all objects of the deleted job of this name" in simulation.condition("Ready").message
    simulation.cluster.change(RAYCLUSTERS, KEY[0], "red-a01-x1", metadata={"finalizers": []})
    await simulation.settle()
    status = simulation.status()
    assert (status.attempts, status.failures) == (1, ())
    assert simulation.attempts() == ["red-a01"]
    assert status.children.ray_cluster is None


async def test_the_pauses_of_a_job_end_with_it_and_not_those_of_its_name(simulation: Any) -> None:
    """Recreated before a pass saw the deletion: both jobs have generation 1."""
    simulation.submit()
    simulation.cluster.failures = lambda verb, kind, name: Refused("denied by a policy") if kind == RAYJOBS else None
    await simulation.after(1800)
    assert simulation.condition("Ready").reason == "ChildRefused"
    simulation.cluster.failures = lambda verb, kind, name: None
    at = simulation.now
    simulation.cluster.remove(JOBS, *KEY)
    simulation.submit()
    await simulation.settle()
    assert (simulation.attempts(), simulation.now) == (["red-a01"], at)
    assert simulation.condition("Ready").reason == "Starting"


async def test_a_job_that_is_recreated_during_a_pass_gets_nothing_of_the_deleted_ones(simulation: Any) -> None:
    """Neither has a status yet, and the RayJob that the pass creates has the deleted job as its owner."""

    def recreate(verb: str, kind: Kind, name: str) -> None:
        if kind == RAYJOBS:
            simulation.cluster.failures = lambda verb, kind, name: None
            simulation.cluster.remove(JOBS, *KEY)
            simulation.submit()
            simulation.watch()

    simulation.submit()
    simulation.watch()
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

    def refused(verb: str, kind: Kind, name: str) -> Refused | None:
        return Refused("denied by a policy") if (verb, kind) == ("delete", RAYJOBS) else None

    await simulation.submit_running(suspendPolicy={"mode": "Immediate"}, backoffLimit=1)
    simulation.cluster.failures = refused
    simulation.edit(suspend=True)
    await simulation.after(60)
    ready = simulation.condition("Ready")
    suspended = simulation.condition("Suspended")
    assert (ready.status, ready.reason, suspended.status) == ("False", "ChildRefused", "Unknown")
    assert "denied by a policy" in ready.message
    assert "ChildRefused" in simulation.event_reasons()
    simulation.cluster.failures = lambda verb, kind, name: None
    await simulation.after(300)
    assert (simulation.condition("Ready").reason, simulation.condition("Suspended").status) == ("Suspended", "True")
    simulation.edit(suspend=False)
    await simulation.settle()
    simulation.run(2)
    simulation.cluster.failures = refused
    simulation.lose_head(2)
    await simulation.after(60)
    assert simulation.condition("Ready").reason == "ChildRefused"
    simulation.cluster.failures = lambda verb, kind, name: None
    await simulation.after(300)
    assert simulation.attempts() == ["red-a03"]
