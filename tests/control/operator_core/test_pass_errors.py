"""A pass that fails writes the condition `ReconcileError` with the words; the next good pass removes it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from e2e.fake_cluster import FakeCluster
from omni_operator.cluster.errors import Refused, ServerError, ServerFailed
from omni_operator.cluster.kinds import JOBS, RAYJOBS, Kind
from omni_operator.reconcile import reconciler
from omni_operator.reconcile.pass_errors import find_condition

KEY = ("team-a", "red")


def shown(simulation: Any) -> dict[str, Any] | None:
    return find_condition(simulation.cluster.get(JOBS, *KEY))


async def fail(simulation: Any, times: int = 1) -> None:
    for _ in range(times):
        with pytest.raises((ZeroDivisionError, Refused)):
            await simulation.reconcile()


async def test_a_defect_is_shown_once_and_removed_by_the_next_good_pass(
    simulation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulation.submit()
    await simulation.settle()
    before = simulation.status()
    with monkeypatch.context() as patch:
        patch.setattr(reconciler, "derive_status", lambda *_: 1 / 0)
        simulation.cluster.counts()
        await fail(simulation, 5)
        assert simulation.cluster.counts() == {("apply_status", "diffusionrljobs"): 1, ("create", "events"): 1}
    found = shown(simulation)
    assert found is not None
    assert (found["status"], found["reason"], found["message"]) == ("True", "ZeroDivisionError", "division by zero")
    assert simulation.event_reasons().count("ReconcileError") == 1
    await simulation.reconcile()  # the worker's backoff is over
    await simulation.settle()
    assert shown(simulation) is None
    assert simulation.status() == before
    simulation.cluster.counts()
    await simulation.reconcile()
    assert not simulation.cluster.counts()


async def test_a_status_that_the_api_server_refuses_is_shown(simulation: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    simulation.submit()
    simulation.watch()

    async def refuse(*_: Any) -> Any:
        raise Refused("status.progress: Invalid value " + "x" * 10_000 + "\ud800")

    with monkeypatch.context() as patch:
        patch.setattr(FakeCluster, "apply_status", refuse)
        await fail(simulation)
    found = shown(simulation)
    assert found is not None
    assert found["reason"] == "Refused"
    assert found["message"].startswith("status.progress: Invalid value")
    assert len(found["message"]) <= 1024
    await simulation.reconcile()
    await simulation.settle()
    assert shown(simulation) is None


async def test_a_job_is_deleted_even_if_its_spec_and_status_cannot_be_read(
    simulation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulation.submit()
    await simulation.settle()
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
    simulation.cluster.failures = lambda verb, kind, name: ServerError(WEBHOOK) if kind == RAYJOBS else None
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
    simulation.cluster.counts()
    await simulation.after(3600)
    assert 10 < simulation.cluster.counts()["create", "rayjobs"] < 25
    assert simulation.event_reasons() == ["ServerFailed"]
    simulation.cluster.failures = lambda verb, kind, name: None
    await simulation.after(300)
    assert simulation.attempts() == ["red-a01"]
    assert simulation.condition("Ready").reason == "Starting"


async def test_a_changed_spec_is_tried_at_once_after_answers_with_500(simulation: Any) -> None:
    simulation.submit()
    simulation.cluster.failures = lambda verb, kind, name: ServerError(WEBHOOK) if kind == RAYJOBS else None
    await simulation.after(3600)
    assert simulation.condition("Ready").reason == "ServerFailed"
    simulation.cluster.failures = lambda verb, kind, name: None
    at = simulation.now
    simulation.edit(seed=7)
    await simulation.settle()
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
    assert shown(simulation) is None


async def test_a_status_that_the_api_server_answers_with_500_is_shown(
    simulation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulation.submit()
    simulation.watch()

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
    found = shown(simulation)
    assert found is not None
    assert (found["reason"], found["message"]) == ("ServerFailed", "status: conversion webhook failed")
    await simulation.reconcile()
    await simulation.settle()
    assert shown(simulation) is None


async def test_a_changed_spec_ends_the_pause_before_the_next_attempt(simulation: Any) -> None:
    simulation.submit(backoffLimit=20)
    await simulation.settle()
    for attempt in (1, 2, 3, 4):
        await simulation.after(300)
        simulation.run(attempt)
        simulation.end(attempt, "FAILED", "AppFailed", "exit code 1")
        simulation.cluster.remove(RAYJOBS, KEY[0], f"red-a{attempt:02d}")
        await simulation.settle()
    assert simulation.condition("Ready").reason == "BetweenAttempts"
    at = simulation.now
    simulation.edit(seed=7)
    await simulation.settle()
    assert simulation.attempts() == ["red-a05"]
    assert simulation.now == at
