"""Requests that the API server refuses, when a job has ended and when it is not known whether its attempt exists."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from omni_operator.cluster.errors import Forbidden, Refused
from omni_operator.cluster.kinds import JOBS, NETWORK_POLICIES, RAYCLUSTERS, RAYJOBS, Kind

KEY = ("team-a", "red")


def allow(verb: str, kind: Kind, name: str) -> None:
    return None


@pytest.mark.parametrize("ends", ["SUCCEEDED", "FAILED"])
async def test_a_deletion_at_ttl_that_is_refused_is_named_until_it_is_allowed(simulation: Any, ends: str) -> None:
    def refused(verb: str, kind: Kind, name: str) -> Refused | None:
        return Forbidden("jobs are kept here") if (verb, kind) == ("delete", JOBS) else None

    await simulation.submit_running(ttlSecondsAfterFinished=60)
    simulation.cluster.failures = refused
    simulation.end(1, ends)
    await simulation.settle()
    before = simulation.status()
    assert before.finished
    simulation.cluster.counts()
    await simulation.after(3600)
    ready = simulation.condition("Ready")
    assert (ready.status, ready.reason, ready.message) == ("False", "Forbidden", "jobs are kept here")
    assert simulation.event_reasons().count("Forbidden") == 1
    assert simulation.status().state == before.state
    assert simulation.cluster.counts()["delete", "diffusionrljobs"] < 25
    others = [condition for condition in simulation.status().conditions if condition.type != "Ready"]
    assert others == [condition for condition in before.conditions if condition.type != "Ready"]

    simulation.edit(ttlSecondsAfterFinished=7200)  # nothing is refused any more
    await simulation.settle()
    ready = simulation.condition("Ready")
    ended = before.condition("Ready")
    assert (ready.status, ready.reason, ready.message) == (ended.status, ended.reason, ended.message)
    simulation.cluster.failures = allow
    simulation.edit(ttlSecondsAfterFinished=0)
    await simulation.settle()
    assert simulation.cluster.get(JOBS, *KEY) is None


async def test_a_deletion_of_a_failed_attempt_that_is_refused_is_tried_after_pauses_that_grow(simulation: Any) -> None:
    """Also after ten minutes, when the wait for what is left of the attempt is over."""

    def refused(verb: str, kind: Kind, name: str) -> Refused | None:
        return Forbidden("RayJobs are kept here") if (verb, kind) == ("delete", RAYJOBS) else None

    await simulation.submit_running(backoffLimit=1)
    simulation.cluster.failures = refused
    simulation.end(1, "FAILED")
    await simulation.settle()
    before = simulation.passes
    await simulation.after(3600)
    assert simulation.passes - before < 40
    ready = simulation.condition("Ready")
    assert (ready.status, ready.reason, ready.message) == ("False", "Forbidden", "RayJobs are kept here")
    simulation.cluster.failures = allow
    await simulation.after(300)
    assert simulation.attempts() == ["red-a02"]


async def test_a_deletion_that_no_watch_delivers_is_not_requested_all_the_time(simulation: Any) -> None:
    await simulation.submit_running(backoffLimit=1)
    simulation.end(1, "FAILED")
    simulation.watch()
    await simulation.reconcile()
    simulation.now += timedelta(minutes=11)  # the operator is away
    simulation.start_operator()
    simulation.frozen = {RAYJOBS}
    simulation.cluster.counts()
    await simulation.after(600)
    assert simulation.cluster.counts()["delete", "rayjobs"] < 5


async def test_conflicts_in_a_row_are_followed_by_pauses_that_grow(simulation: Any) -> None:
    """An object of an earlier job of this name, that garbage collection does not delete."""
    owner = {"apiVersion": JOBS.api_version, "kind": JOBS.kind, "name": "red", "uid": "earlier", "controller": True}
    metadata = {"namespace": KEY[0], "name": "red", "ownerReferences": [owner]}
    simulation.cluster.collect = lambda: None
    simulation.cluster.make(
        {"apiVersion": NETWORK_POLICIES.api_version, "kind": NETWORK_POLICIES.kind, "metadata": metadata}
    )
    simulation.submit()
    await simulation.after(3600)
    assert simulation.passes < 80
    simulation.cluster.remove(NETWORK_POLICIES, KEY[0], "red")
    await simulation.after(60)
    assert simulation.attempts() == ["red-a01"]


@pytest.mark.parametrize("kind", [RAYJOBS, RAYCLUSTERS], ids=lambda kind: kind.plural)
async def test_without_the_right_to_look_for_its_attempt_a_job_says_so_and_starts_no_other(
    simulation: Any, kind: Kind
) -> None:
    """An attempt that lost its labels is seen by no watch, and may still run."""

    def refused(verb: str, of: Kind, name: str) -> Refused | None:
        return Forbidden(f"cannot get {of.plural}") if (verb, of) == ("get", kind) else None

    await simulation.submit_running()
    simulation.cluster.failures = refused
    name = "red-a01" if kind == RAYJOBS else "red-a01-x1"
    body = simulation.cluster.get(kind, KEY[0], name)
    labels = dict.fromkeys(body["metadata"]["labels"])
    simulation.cluster.change(kind, KEY[0], name, metadata={"labels": labels})
    simulation.cluster.counts()
    await simulation.after(600)
    ready = simulation.condition("Ready")
    assert (ready.status, ready.reason, ready.message) == ("False", "Forbidden", f"cannot get {kind.plural}")
    assert "ReconcileError" not in {found.type for found in simulation.status().conditions}
    assert (simulation.attempts(), simulation.status().failures) == (["red-a01"], ())
    assert simulation.cluster.counts()["get", kind.plural] < 12
    for number in range(5):  # a pause is not ended by what others change
        simulation.cluster.change(JOBS, *KEY, metadata={"annotations": {"example.com/touched": str(number)}})
        await simulation.settle()
    assert not simulation.cluster.counts()["get", kind.plural]
    simulation.cluster.failures = allow
    await simulation.after(300)
    assert simulation.condition("Ready").status == "True"
    assert (simulation.attempts(), simulation.status().failures) == (["red-a01"], ())
