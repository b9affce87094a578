"""Queue of jobs: no overlapping passes of a job, merged triggers, new jobs first, isolated errors."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta

import pytest

from omni_operator.cluster.errors import Unavailable
from omni_operator.cluster.kinds import Key
from omni_operator.handlers import job_workers as module
from omni_operator.handlers.job_workers import JobWorkers
from omni_operator.reconcile.subject import ReconcileResult

A = ("ns", "a")
B = ("ns", "b")
C = ("ns", "c")
D = ("ns", "d")
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
        self.workers: list[JobWorkers] = []

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


@pytest.fixture
async def passes() -> AsyncIterator[Passes]:
    """Passes, whose workers end after the test."""
    passes = Passes()
    yield passes
    for workers in passes.workers:
        await workers.stop(10)


def new_workers(
    passes: Passes, ranks: Mapping[Key, int] | None = None, places: int = 4, started: bool = True
) -> JobWorkers:
    workers = JobWorkers(
        passes.reconcile,
        rank=lambda key: (ranks or {}).get(key, 1),
        revision=passes.revisions.get,
        resync=lambda: 3600.0,
        measured=lambda result, seconds: passes.results.append(result),
        clock=lambda: NOW,
        passes=places,
        started=started,
    )
    passes.workers.append(workers)
    return workers


async def test_a_pass_that_asks_for_another_one_is_followed_by_it_before_new_jobs(passes: Passes) -> None:
    passes.answers[A] = [ReconcileResult(wake=NOW)]
    held = passes.barriers[A] = asyncio.Event()
    workers = new_workers(passes, {A: 1, B: 0}, places=1)
    workers.wake(A)
    await passes.until(1)
    workers.wake(B)
    del passes.barriers[A]
    held.set()
    await passes.until(3)
    assert passes.started_keys == [A, A, B]


async def test_triggers_during_a_pass_make_one_more_pass(passes: Passes) -> None:
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


async def test_jobs_of_a_smaller_rank_go_first(passes: Passes) -> None:
    passes.barriers[A] = asyncio.Event()
    workers = new_workers(passes, {B: 2, C: 1, D: 0}, places=1)
    workers.wake(A)
    await passes.until(1)
    for key in (B, C, D):
        workers.wake(key)
        workers.wake(key)
    assert workers.depth == 3
    passes.barriers[A].set()
    await passes.until(4)
    assert passes.started_keys == [A, D, C, B]


async def test_a_thousand_passes_let_others_run_between_them_and_leave_no_task(passes: Passes) -> None:
    turns = 0
    workers = new_workers(passes, {A: 0}, places=16)
    for number in range(1000):
        workers.wake(("ns", f"job-{number}"))
    while len(passes.started_keys) < 500:
        await asyncio.sleep(0)
        turns += 1
    assert turns >= 450, "one pass starts in each turn of the event loop"
    workers.wake(A)
    while workers.depth or workers.tasks:
        await asyncio.sleep(0)
    assert passes.started_keys.index(A) < 520, "a new job does not wait for the others"
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("job ")]


async def test_namespaces_take_turns_however_many_jobs_one_of_them_has(passes: Passes) -> None:
    others = [("other", "a"), ("third", "a")]
    workers = new_workers(passes, dict.fromkeys(others, 2), places=16)
    for number in range(800):
        passes.answers["ns", f"job-{number}"] = [ReconcileResult(wake=NOW)] * 3
        workers.wake(("ns", f"job-{number}"))
    await passes.until(100)
    before = len(passes.started_keys)
    for key in others:
        workers.wake(key)
    await passes.until(before + 5)
    assert {*others} < {*passes.started_keys[before:]}, "not after all passes of another namespace"
    while workers.depth or workers.tasks:
        await asyncio.sleep(0)
    assert len(passes.started_keys) == 4 * 800 + 2
    assert not workers._queues
    assert not workers._running


async def test_passes_that_wait_for_an_answer_leave_places_to_other_namespaces(passes: Passes) -> None:
    elsewhere = ("other", "a")
    slow = [("ns", f"job-{number}") for number in range(50)]
    passes.barriers = {key: asyncio.Event() for key in slow}
    workers = new_workers(passes, places=16)
    for key in slow:
        workers.wake(key)
    await passes.until(8)
    workers.wake(elsewhere)
    await passes.until(9)
    assert passes.started_keys == [*slow[:8], elsewhere]
    for barrier in passes.barriers.values():
        barrier.set()
    await passes.until(51)


async def test_passes_that_ask_for_another_one_at_once_each_time_slow_down(passes: Passes) -> None:
    passes.answers[A] = [ReconcileResult(wake=NOW - timedelta(hours=1))] * 1000
    workers = new_workers(passes)
    workers.wake(A)
    await passes.until(module.CONTINUED_MOST + 1)
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(passes.started_keys) == module.CONTINUED_MOST + 1
    workers.wake(A)  # a change is handled at once
    await passes.until(module.CONTINUED_MOST + 2)


async def test_a_job_that_is_woken_often_takes_no_memory(passes: Passes) -> None:
    workers = new_workers(passes)
    for number in range(1000):
        workers.wake(A)
        await passes.until(number + 1)
        while workers.tasks:
            await asyncio.sleep(0)
    assert len(workers._sleeping) <= module.STALE_ENTRIES + 4


async def test_a_sleeping_job_wakes_at_its_time(passes: Passes) -> None:
    passes.answers[A] = [ReconcileResult(wake=NOW + timedelta(seconds=0.01)), ReconcileResult()]
    passes.answers[B] = [ReconcileResult(wake=NOW + timedelta(seconds=3000)), ReconcileResult()]
    workers = new_workers(passes)
    workers.wake(B)
    workers.wake(A)
    await passes.until(3)
    assert passes.started_keys == [B, A, A]


async def test_errors_of_one_job_do_not_stop_others(passes: Passes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BACKOFF_FIRST", 0.0)
    passes.answers[A] = [ZeroDivisionError("a bug"), Unavailable("away", after=0.0), ReconcileResult()]
    workers = new_workers(passes)
    workers.wake(A)
    await passes.until(3)
    workers.wake(B)
    await passes.until(4)
    await workers.stop(10)
    assert passes.started_keys == [A, A, A, B]
    assert passes.results == ["error", "unavailable", "ok", "ok"]


async def test_a_worker_ends_with_its_job_and_a_new_job_of_that_name_gets_a_new_one(passes: Passes) -> None:
    passes.answers[A] = [ReconcileResult(result="gone")]
    workers = new_workers(passes)
    workers.wake(A)
    await passes.until(1)
    while A in workers._jobs:
        await asyncio.sleep(0)
    workers.wake(A)
    await passes.until(2)


async def test_shutdown_completes_running_passes_and_starts_none(passes: Passes) -> None:
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


async def test_only_a_changed_job_ends_a_backoff(passes: Passes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BACKOFF_FIRST", 3600.0)
    monkeypatch.setattr(module, "BACKOFF_MOST", 3600.0)
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


async def test_a_job_that_changes_during_a_failing_pass_has_no_backoff(
    passes: Passes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BACKOFF_FIRST", 3600.0)
    passes.barriers[A] = asyncio.Event()
    passes.answers[A] = [Unavailable("away"), ReconcileResult()]
    workers = new_workers(passes)
    workers.wake(A)
    await passes.until(1)
    passes.revisions[A] = 1
    workers.wake(A)
    passes.barriers.pop(A).set()
    await passes.until(2)


async def test_a_replica_that_does_not_lead_makes_no_pass_and_forgets_its_jobs(passes: Passes) -> None:
    workers = new_workers(passes, started=False)
    workers.wake(A)
    for _ in range(5):
        await asyncio.sleep(0)
    assert (passes.started_keys, workers.depth) == ([], 0)
    workers.start()
    workers.wake(A)
    passes.answers[B] = [Unavailable("later")]
    workers.wake(B)
    await passes.until(2)
    assert await workers.stop(10), "none had to be cancelled"
    workers.wake(C)
    workers.start()
    workers.wake(B)
    await passes.until(3)
    assert passes.started_keys == [A, B, B], "the backoff of B is forgotten, and so is C"


async def test_passes_that_do_not_end_in_time_are_cancelled(passes: Passes) -> None:
    passes.barriers[A] = asyncio.Event()
    workers = new_workers(passes)
    workers.wake(A)
    await passes.until(1)
    assert not await workers.stop(0)
    assert (workers.tasks, passes.results) == (0, [])
    workers.start()
    passes.barriers.clear()
    workers.wake(A)
    await passes.until(2)
