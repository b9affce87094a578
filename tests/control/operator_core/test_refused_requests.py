"""Requests that the API server refuses or answers with 500, and passes that fail."""

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from control.operator_core.pools import KEY
from e2e.fake_cluster import FakeCluster
from omni_operator.cluster.errors import Forbidden, Refused, ServerError, ServerFailed
from omni_operator.cluster.kinds import JOBS, NETWORK_POLICIES, RAYCLUSTERS, RAYJOBS, Kind
from omni_operator.reconcile import reconciler
from omni_operator.reconcile.pass_errors import find_condition


@pytest.mark.parametrize("ends", ["SUCCEEDED", "FAILED"])
async def test_a_deletion_at_ttl_that_is_refused_is_named_until_it_is_allowed(simulation: Any, ends: str) -> None:
    await simulation.submit_running(ttlSecondsAfterFinished=60)
    simulation.refuse(Forbidden("jobs are kept here"), JOBS, "delete")
    await simulation.end_and_settle(1, ends)
    before = simulation.status()
    assert before.finished
    requests = await simulation.requests_in(3600)
    ready = simulation.condition("Ready")
    assert (ready.status, ready.reason, ready.message) == ("False", "Forbidden", "jobs are kept here")
    assert simulation.event_reasons().count("Forbidden") == 1
    assert simulation.status().state == before.state
    assert requests["delete", "diffusionrljobs"] < 25
    others = [condition for condition in simulation.status().conditions if condition.type != "Ready"]
    assert others == [condition for condition in before.conditions if condition.type != "Ready"]

    simulation.edit(ttlSecondsAfterFinished=7200)  # nothing is refused any more
    await simulation.settle()
    ready = simulation.condition("Ready")
    ended = before.condition("Ready")
    assert (ready.status, ready.reason, ready.message) == (ended.status, ended.reason, ended.message)
    simulation.allow()
    await simulation.edit_and_settle(ttlSecondsAfterFinished=0)
    assert simulation.cluster.get(JOBS, *KEY) is None


async def test_a_deletion_of_a_failed_attempt_that_is_refused_is_tried_after_pauses_that_grow(simulation: Any) -> None:
    """Also after ten minutes, when the wait for what is left of the attempt is over."""
    await simulation.submit_running(backoffLimit=1)
    simulation.refuse(Forbidden("RayJobs are kept here"), RAYJOBS, "delete")
    await simulation.end_and_settle(1, "FAILED")
    before = simulation.passes
    await simulation.after(3600)
    assert simulation.passes - before < 40
    ready = simulation.condition("Ready")
    assert (ready.status, ready.reason, ready.message) == ("False", "Forbidden", "RayJobs are kept here")
    simulation.allow()
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
    assert (await simulation.requests_in(600))["delete", "rayjobs"] < 5


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
    waits = simulation.condition("Ready")
    assert waits.reason == "BetweenAttempts"
    assert waits.message.startswith("NetworkPolicy red belongs to an earlier job of this name: garbage collection ")
    simulation.cluster.remove(NETWORK_POLICIES, KEY[0], "red")
    await simulation.after(60)
    assert simulation.attempts() == ["red-a01"]


@pytest.mark.parametrize("kind", [RAYJOBS, RAYCLUSTERS], ids=lambda kind: kind.plural)
async def test_without_the_right_to_look_for_its_attempt_a_job_says_so_and_starts_no_other(
    simulation: Any, kind: Kind
) -> None:
    """An attempt that lost its labels is seen by no watch, and may still run."""
    await simulation.submit_running()
    simulation.refuse(Forbidden(f"cannot get {kind.plural}"), kind, "get")
    name = "red-a01" if kind == RAYJOBS else "red-a01-x1"
    body = simulation.cluster.get(kind, KEY[0], name)
    labels = dict.fromkeys(body["metadata"]["labels"])
    simulation.cluster.change(kind, KEY[0], name, metadata={"labels": labels})
    requests = await simulation.requests_in(600)
    ready = simulation.condition("Ready")
    assert (ready.status, ready.reason, ready.message) == ("False", "Forbidden", f"cannot get {kind.plural}")
    assert "ReconcileError" not in {condition.type for condition in simulation.status().conditions}
    assert (simulation.attempts(), simulation.status().failures) == (["red-a01"], ())
    assert requests["get", kind.plural] < 12
    for number in range(5):  # a pause is not ended by what others change
        simulation.cluster.change(JOBS, *KEY, metadata={"annotations": {"example.com/touched": str(number)}})
        await simulation.settle()
    assert not simulation.cluster.counts()["get", kind.plural]
    simulation.allow()
    await simulation.after(300)
    assert simulation.condition("Ready").status == "True"
    assert (simulation.attempts(), simulation.status().failures) == (["red-a01"], ())


def shown(simulation: Any) -> dict[str, Any] | None:
    return find_condition(simulation.cluster.get(JOBS, *KEY))


async def fail(simulation: Any, times: int = 1) -> None:
    for _ in range(times):
        with pytest.raises((ZeroDivisionError, Refused)):
            await simulation.reconcile()


async def test_a_defect_is_shown_once_and_removed_by_the_next_good_pass(
    simulation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await simulation.submit_and_settle()
    before = simulation.status()
    with monkeypatch.context() as patch:
        patch.setattr(reconciler, "derive_status", lambda *_: 1 / 0)
        simulation.cluster.counts()
        await fail(simulation, 5)
        assert simulation.cluster.counts() == {("apply_status", "diffusionrljobs"): 1, ("create", "events"): 1}
    error = shown(simulation)
    assert (error["status"], error["reason"], error["message"]) == ("True", "ZeroDivisionError", "division by zero")
    assert simulation.event_reasons().count("ReconcileError") == 1
    await simulation.reconcile()  # the worker's backoff is over
    await simulation.settle()
    assert shown(simulation) is None
    assert simulation.status() == before
    simulation.cluster.counts()
    await simulation.reconcile()
    assert not simulation.cluster.counts()


async def test_a_status_that_the_api_server_refuses_is_shown(simulation: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    simulation.submit_and_watch()

    async def refuse(*_: Any) -> Any:
        raise Refused("status.progress: Invalid value " + "x" * 10_000 + "\ud800")

    with monkeypatch.context() as patch:
        patch.setattr(FakeCluster, "apply_status", refuse)
        await fail(simulation)
    error = shown(simulation)
    assert error["reason"] == "Refused"
    assert error["message"].startswith("status.progress: Invalid value")
    assert len(error["message"]) <= 1024
    await simulation.reconcile()
    await simulation.settle()
    assert shown(simulation) is None


async def test_a_job_is_deleted_even_if_its_spec_and_status_cannot_be_read(
    simulation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await simulation.submit_and_settle()
    simulation.run(1)
    for name in ("parse_status", "derive_status"):
        monkeypatch.setattr(reconciler, name, lambda *_: 1 / 0)
    await fail(simulation)
    simulation.cluster.remove(JOBS, *KEY)
    await simulation.after(120)
    assert simulation.cluster.get(JOBS, *KEY) is None
    assert not simulation.cluster.all(RAYJOBS)


WEBHOOK = 'create rayjobs: Internal error occurred: failed calling webhook "gate.example.com": connection refused'


async def test_a_child_that_the_api_server_answers_with_500_is_a_refusal_the_third_time(simulation: Any) -> None:
    simulation.submit()
    simulation.refuse(ServerError(WEBHOOK), RAYJOBS)
    await simulation.settle()
    await simulation.after(2)
    assert simulation.status().conditions == (), "it may be a passing failure"
    assert simulation.cluster.counts()["create", "rayjobs"] == 2
    await simulation.after(5)
    ready = simulation.condition("Ready")
    assert (ready.status, ready.reason) == ("False", "ServerFailed")
    assert ready.message == f"the API server failed 3 times in a row: {WEBHOOK}"
    assert (simulation.status().state, simulation.status().reason) == ("Pending", "ServerFailed")
    assert simulation.event_reasons() == ["ServerFailed"]
    assert shown(simulation) is None
    assert 10 < (await simulation.requests_in(3600))["create", "rayjobs"] < 25
    assert simulation.event_reasons() == ["ServerFailed"]
    simulation.allow()
    await simulation.after(300)
    assert simulation.attempts() == ["red-a01"]
    assert simulation.condition("Ready").reason == "Starting"


async def test_a_changed_spec_is_tried_at_once_after_answers_with_500(simulation: Any) -> None:
    simulation.submit()
    simulation.refuse(ServerError(WEBHOOK), RAYJOBS)
    await simulation.after(3600)
    assert simulation.condition("Ready").reason == "ServerFailed"
    simulation.allow()
    at = simulation.now
    await simulation.edit_and_settle(seed=7)
    assert (simulation.attempts(), simulation.now) == (["red-a01"], at)
    assert simulation.condition("Ready").reason == "Starting"


async def test_answers_with_500_that_end_are_never_shown(simulation: Any) -> None:
    simulation.submit()
    seen: Counter[str] = Counter()

    def fail_twice(verb: str, kind: Kind, name: str) -> ServerError | None:
        request = f"{verb} {kind.plural}"
        seen[request] += 1
        return ServerError("etcdserver: leader changed", request=request) if seen[request] < 3 else None

    simulation.cluster.failures = fail_twice
    await simulation.after(3600)
    assert simulation.attempts() == ["red-a01"]
    assert simulation.condition("Ready").reason == "Starting"
    assert {seen[request] for request in ("create networkpolicies", "create rayjobs")} == {3}
    assert simulation.event_reasons() == []
    seen.clear()
    simulation.cluster.remove(RAYJOBS, KEY[0], "red-a01")
    await simulation.after(600)
    assert (simulation.attempts(), "ServerFailed" in simulation.event_reasons()) == (["red-a02"], False)
    assert shown(simulation) is None


async def test_a_status_that_the_api_server_answers_with_500_is_shown(
    simulation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulation.submit_and_watch()

    async def fail_to_write(*_: Any) -> Any:
        raise ServerError("status: conversion webhook failed")

    with monkeypatch.context() as patch:
        patch.setattr(FakeCluster, "apply_status", fail_to_write)
        for _ in range(2):
            with pytest.raises(ServerError):
                await simulation.reconcile()
            assert shown(simulation) is None
        with pytest.raises(ServerFailed):
            await simulation.reconcile()
    error = shown(simulation)
    assert (error["reason"], error["message"]) == ("ServerFailed", "status: conversion webhook failed")
    await simulation.reconcile()
    await simulation.settle()
    assert shown(simulation) is None


async def test_a_changed_spec_ends_the_pause_before_the_next_attempt(simulation: Any) -> None:
    await simulation.submit_and_settle(backoffLimit=20)
    for attempt in (1, 2, 3, 4):
        await simulation.after(300)
        simulation.run(attempt)
        simulation.end(attempt, "FAILED", "AppFailed", "exit code 1")
        simulation.cluster.remove(RAYJOBS, KEY[0], f"red-a{attempt:02d}")
        await simulation.settle()
    assert simulation.condition("Ready").reason == "BetweenAttempts"
    at = simulation.now
    await simulation.edit_and_settle(seed=7)
    assert simulation.attempts() == ["red-a05"]
    assert simulation.now == at
