"""Queue of jobs: no overlapping passes of a job, merged triggers, new jobs first, isolated errors."""

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
    """Passes that the test holds and releases."""

    def __init__(self) -> None:
        self.started_keys: list[Key] = []
        self.results: list[str] = []
        self.barriers: dict[Key, asyncio.Event] = {}
        self.started = asyncio.Condition()
        self.revisions: dict[Key, int] = {}
        self.answers: dict[Key, list[ReconcileResult | Exception]] = {}

    async def reconcile(self, key: Key) -> ReconcileResult:
        async with self.started:
            self.started_keys.append(key)
            self.started.notify_all()
        if barrier := self.barriers.get(key):
            await barrier.wait()
            barrier.clear()
        answer = self.answers[key].pop(0) if self.answers.get(key) else ReconcileResult()
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def until(self, count: int) -> None:
        async with asyncio.timeout(10), self.started:
            await self.started.wait_for(lambda: len(self.started_keys) >= count)


def new_workers(passes: Passes, urgent: frozenset[Key] = frozenset(), places: int = 4) -> JobWorkers:
    return JobWorkers(
        passes.reconcile, urgent=lambda key: key in urgent, revision=passes.revisions.get, resync=lambda: 3600.0,
        measured=lambda result, seconds: passes.results.append(result), clock=lambda: NOW, passes=places,
    )  # fmt: skip


async def test_triggers_during_a_pass_make_one_more_pass() -> None:
    passes = Passes()
    passes.barriers[A] = asyncio.Event()
    workers = new_workers(passes)
    workers.wake(A)
    await passes.until(1)
    for _ in range(100):
        workers.wake(A)
    assert passes.started_keys == [A]  # never two passes over one job
    passes.barriers[A].set()
    await passes.until(2)
    passes.barriers[A].set()
    await workers.stop(10)
    assert passes.started_keys == [A, A]


async def test_new_jobs_go_first() -> None:
    passes = Passes()
    passes.barriers[A] = asyncio.Event()
    workers = new_workers(passes, frozenset({C}), places=1)
    workers.wake(A)
    await passes.until(1)
    workers.wake(B)
    await asyncio.sleep(0)
    workers.wake(C)
    await asyncio.sleep(0)
    assert workers.depth == 2
    passes.barriers[A].set()
    await passes.until(3)
    assert passes.started_keys == [A, C, B]
    await workers.stop(10)


async def test_the_result_of_a_pass_schedules_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = Passes()
    passes.answers[A] = [ReconcileResult(wake=NOW), ReconcileResult(wake=NOW - timedelta(seconds=5)), ReconcileResult()]
    workers = new_workers(passes)
    workers.wake(A)
    await passes.until(3)
    await workers.stop(10)
    assert passes.started_keys == [A, A, A]


async def test_errors_of_one_job_do_not_stop_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BACKOFF_FIRST", 0.0)
    passes = Passes()
    passes.answers[A] = [ZeroDivisionError("a bug"), Unavailable("away", after=0.0), ReconcileResult()]
    workers = new_workers(passes)
    workers.wake(A)
    await passes.until(3)
    workers.wake(B)
    await passes.until(4)
    await workers.stop(10)
    assert passes.started_keys == [A, A, A, B]
    assert passes.results == ["error", "unavailable", "ok", "ok"]


async def test_a_worker_ends_with_its_job_and_a_new_job_of_that_name_gets_a_new_one() -> None:
    passes = Passes()
    passes.answers[A] = [ReconcileResult(gone=True)]
    workers = new_workers(passes)
    workers.wake(A)
    await passes.until(1)
    while A in workers._workers:
        await asyncio.sleep(0)
    workers.wake(A)
    await passes.until(2)
    await workers.stop(10)


async def test_shutdown_completes_running_passes_and_starts_none() -> None:
    passes = Passes()
    passes.barriers[A] = asyncio.Event()
    workers = new_workers(passes, places=1)
    workers.wake(A)
    await passes.until(1)
    workers.wake(B)
    await asyncio.sleep(0)
    stopping = asyncio.create_task(workers.stop(10))
    await asyncio.sleep(0)
    workers.wake(C)
    passes.barriers[A].set()
    await stopping
    assert passes.started_keys == [A]
    assert passes.results == ["ok"]


async def test_shutdown_cancels_a_pass_after_the_deadline() -> None:
    passes = Passes()
    passes.barriers[A] = asyncio.Event()
    workers = new_workers(passes)
    workers.wake(A)
    await passes.until(1)
    await workers.stop(0.0)
    assert passes.results == []


async def test_a_cancelled_waiter_takes_no_place() -> None:
    semaphore = PrioritySemaphore(1)
    inside, leave = asyncio.Event(), asyncio.Event()

    async def stay() -> None:
        async with semaphore.acquire(False):
            inside.set()
            await leave.wait()

    async def pass_through() -> str:
        async with semaphore.acquire(False):
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
    assert (semaphore.waiting, semaphore._free) == (0, 1)


async def test_only_a_changed_job_ends_a_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BACKOFF_FIRST", 3600.0)
    monkeypatch.setattr(module, "BACKOFF_MOST", 3600.0)
    passes = Passes()
    passes.answers[A] = [Unavailable("away", after=3600.0), ZeroDivisionError("a bug"), ReconcileResult()]
    workers = new_workers(passes)
    workers.wake(A)
    for count in (1, 2):
        await passes.until(count)
        for _ in range(20):  # reports, changes of children
            workers.wake(A)
            await asyncio.sleep(0)
        assert len(passes.started_keys) == count
        passes.revisions[A] = count
        workers.wake(A)
    await passes.until(3)
    await workers.stop(10)
    assert passes.results == ["unavailable", "error", "ok"]


async def test_a_stop_ends_a_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BACKOFF_FIRST", 3600.0)
    monkeypatch.setattr(module, "BACKOFF_MOST", 3600.0)
    passes = Passes()
    passes.answers[A] = [Unavailable("away")]
    workers = new_workers(passes)
    workers.wake(A)
    await passes.until(1)
    await asyncio.sleep(0)
    await workers.stop(600)
    assert passes.results == ["unavailable"]
