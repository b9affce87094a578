"""JobWorkers: one pass at a time for a job, any number of triggers one pass, new jobs first, faults apart."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from omni_operator.cluster.errors import Unavailable
from omni_operator.cluster.kinds import Key
from omni_operator.handlers import job_workers as module
from omni_operator.handlers.job_workers import JobWorkers, PrioritySemaphore
from omni_operator.reconciler import ReconcileResult

A, B, C = ("ns", "a"), ("ns", "b"), ("ns", "c")
NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Passes:
    """Passes that begin, and end when the test lets them."""

    def __init__(self) -> None:
        self.begun: list[Key] = []
        self.results: list[str] = []
        self.gates: dict[Key, asyncio.Event] = {}
        self.started = asyncio.Condition()
        self.answers: dict[Key, list[ReconcileResult | Exception]] = {}

    async def reconcile(self, key: Key) -> ReconcileResult:
        async with self.started:
            self.begun.append(key)
            self.started.notify_all()
        if gate := self.gates.get(key):
            await gate.wait()
            gate.clear()
        answer = self.answers[key].pop(0) if self.answers.get(key) else ReconcileResult()
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def until(self, count: int) -> None:
        async with asyncio.timeout(10), self.started:
            await self.started.wait_for(lambda: len(self.begun) >= count)


def made(passes: Passes, urgent: frozenset[Key] = frozenset(), places: int = 4) -> JobWorkers:
    return JobWorkers(
        passes.reconcile, urgent=lambda key: key in urgent, resync=lambda: 3600.0,
        measured=lambda result, seconds: passes.results.append(result), clock=lambda: NOW, passes=places,
    )  # fmt: skip


async def test_triggers_during_a_pass_make_one_more_pass() -> None:
    passes = Passes()
    passes.gates[A] = asyncio.Event()
    workers = made(passes)
    workers.wake(A)
    await passes.until(1)
    for _ in range(100):
        workers.wake(A)
    assert passes.begun == [A]  # never two passes over one job
    passes.gates[A].set()
    await passes.until(2)
    passes.gates[A].set()
    await workers.stop(10)
    assert passes.begun == [A, A]


async def test_jobs_that_nobody_looked_at_go_first() -> None:
    passes = Passes()
    passes.gates[A] = asyncio.Event()
    workers = made(passes, frozenset({C}), places=1)
    workers.wake(A)
    await passes.until(1)
    workers.wake(B)
    await asyncio.sleep(0)
    workers.wake(C)
    await asyncio.sleep(0)
    assert workers.depth == 2
    passes.gates[A].set()
    await passes.until(3)
    assert passes.begun == [A, C, B]
    await workers.stop(10)


async def test_a_pass_is_due_when_the_last_one_said(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = Passes()
    passes.answers[A] = [ReconcileResult(wake=NOW), ReconcileResult(wake=NOW - timedelta(seconds=5)), ReconcileResult()]
    workers = made(passes)
    workers.wake(A)
    await passes.until(3)
    await workers.stop(10)
    assert passes.begun == [A, A, A]


async def test_a_fault_of_one_job_leaves_the_others_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE_FIRST", 0.0)
    passes = Passes()
    passes.answers[A] = [ZeroDivisionError("a bug"), Unavailable("away", after=0.0), ReconcileResult()]
    workers = made(passes)
    workers.wake(A)
    await passes.until(3)
    workers.wake(B)
    await passes.until(4)
    await workers.stop(10)
    assert passes.begun == [A, A, A, B]
    assert passes.results == ["error", "unavailable", "ok", "ok"]


async def test_a_worker_ends_with_its_job_and_begins_with_the_next_of_its_name() -> None:
    passes = Passes()
    passes.answers[A] = [ReconcileResult(gone=True)]
    workers = made(passes)
    workers.wake(A)
    await passes.until(1)
    while A in workers._workers:
        await asyncio.sleep(0)
    workers.wake(A)
    await passes.until(2)
    await workers.stop(10)


async def test_stopping_lets_running_passes_end_and_begins_none() -> None:
    passes = Passes()
    passes.gates[A] = asyncio.Event()
    workers = made(passes, places=1)
    workers.wake(A)
    await passes.until(1)
    workers.wake(B)
    await asyncio.sleep(0)
    stopping = asyncio.create_task(workers.stop(10))
    await asyncio.sleep(0)
    workers.wake(C)
    passes.gates[A].set()
    await stopping
    assert passes.begun == [A]
    assert passes.results == ["ok"]


async def test_a_pass_that_does_not_end_is_cut_off() -> None:
    passes = Passes()
    passes.gates[A] = asyncio.Event()
    workers = made(passes)
    workers.wake(A)
    await passes.until(1)
    await workers.stop(0.0)
    assert passes.results == []


async def test_a_waiter_that_gives_up_takes_no_place() -> None:
    gate = PrioritySemaphore(1)
    inside, leave = asyncio.Event(), asyncio.Event()

    async def stay() -> None:
        async with gate.turn(False):
            inside.set()
            await leave.wait()

    async def pass_through() -> str:
        async with gate.turn(False):
            return "in"

    first = asyncio.create_task(stay())
    await inside.wait()
    second, third = asyncio.create_task(pass_through()), asyncio.create_task(pass_through())
    await asyncio.sleep(0)
    second.cancel()
    leave.set()
    async with asyncio.timeout(10):
        assert await third == "in"
    await first
    assert (gate.waiting, gate._free) == (0, 1)
