"""Queue of jobs, one worker each: passes over a job never overlap, and several triggers are merged into one pass."""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime

from omni_operator.cluster.errors import ClusterError, Unavailable
from omni_operator.cluster.kinds import Key
from omni_operator.reconciler import ReconcileResult

BACKOFF_FIRST, BACKOFF_MOST = 1.0, 300.0
log = logging.getLogger(__name__)


class PrioritySemaphore:
    """Semaphore with priorities: urgent waiters go first, others in order of arrival."""

    def __init__(self, places: int) -> None:
        self._free, self._order = places, itertools.count()
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []

    @asynccontextmanager
    async def acquire(self, urgent: bool) -> AsyncIterator[None]:
        """Hold a place while the context is open."""
        await self._enter(urgent)
        try:
            yield
        finally:
            self._leave()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def _enter(self, urgent: bool) -> None:
        if self._free:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (0 if urgent else 1, next(self._order), turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._leave()  # cancelled after it got the place
            raise

    def _leave(self) -> None:
        while self._waiting:
            _, _, turn = heapq.heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


@dataclass(slots=True)
class _Worker:
    task: asyncio.Task[None] | None = None
    woken: asyncio.Event = field(default_factory=asyncio.Event)


class JobWorkers:
    """Workers of all jobs.

    Args:
        reconcile: makes one pass over a job.
        urgent: whether a job goes first; new jobs do.
        revision: changes when a job's spec changes, when its deletion begins and when it is gone.
        resync: seconds until the next pass over a job without events, with jitter.
        measured: called with result and seconds of every pass.
    """

    def __init__(
        self, reconcile: Callable[[Key], Awaitable[ReconcileResult]], *, urgent: Callable[[Key], bool],
        revision: Callable[[Key], object], resync: Callable[[], float], measured: Callable[[str, float], None],
        clock: Callable[[], datetime], passes: int,
    ) -> None:  # fmt: skip
        self._reconcile, self._urgent, self._revision, self._resync = reconcile, urgent, revision, resync
        self._measured, self._clock, self._semaphore = measured, clock, PrioritySemaphore(passes)
        self._workers: dict[Key, _Worker] = {}
        self._stopping = asyncio.Event()

    def wake(self, key: Key) -> None:
        """Schedule a pass over a job: now, or after the current one."""
        if self._stopping.is_set():
            return
        worker = self._workers.get(key)
        if worker is None:
            worker = self._workers[key] = _Worker()
            # A new context: kopf's would keep the event's object in memory as long as the worker lives.
            name, context = f"job {key[0]}/{key[1]}", contextvars.Context()
            worker.task = asyncio.create_task(self._work(key, worker), name=name, context=context)
        worker.woken.set()

    @property
    def depth(self) -> int:
        """Number of passes that wait for a place."""
        return self._semaphore.waiting

    async def stop(self, seconds: float) -> None:
        """Start no new passes; cancel running ones after `seconds`."""
        self._stopping.set()
        tasks = [worker.task for worker in self._workers.values() if worker.task]
        for worker in self._workers.values():
            worker.woken.set()
        if not tasks:
            return
        _, running = await asyncio.wait(tasks, timeout=seconds)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _work(self, key: Key, worker: _Worker) -> None:
        failures = 0
        while not self._stopping.is_set():
            worker.woken.clear()
            async with self._semaphore.acquire(self._urgent(key)):
                if self._stopping.is_set():
                    break
                revision = self._revision(key)
                outcome = await self._pass(key, failures)
            if isinstance(outcome, float):
                failures = 0 if await self._back_off(key, worker, outcome, revision) else failures + 1
                continue
            failures = 0
            if outcome.gone and not worker.woken.is_set():
                break
            await _wait_at_most(worker.woken, self._until_next(outcome))
        del self._workers[key]

    async def _back_off(self, key: Key, worker: _Worker, seconds: float, revision: object) -> bool:
        """Wait after a failed pass. Return whether the job's revision changed, which ends the wait.

        Reports and changes of children do not shorten it.
        """
        try:
            async with asyncio.timeout(seconds):
                while self._revision(key) == revision and not self._stopping.is_set():
                    await worker.woken.wait()
                    worker.woken.clear()
        except TimeoutError:
            return False
        return True

    async def _pass(self, key: Key, failures: int) -> ReconcileResult | float:
        """Make one pass; if it fails, return the seconds to wait before the next."""
        begun, pause = time.monotonic(), min(BACKOFF_FIRST * 2 ** min(failures, 16), BACKOFF_MOST)
        try:
            result = await self._reconcile(key)
        except ClusterError as error:
            log.warning("%s/%s: pass failed, retry in %.0f s: %s", *key, pause, error)
            self._measured("unavailable", time.monotonic() - begun)
            return max(pause, (error.after if isinstance(error, Unavailable) else None) or 0.0)
        except Exception:
            log.exception("%s/%s: pass failed with an unexpected error, retry in %.0f s", *key, pause)
            self._measured("error", time.monotonic() - begun)
            return pause
        self._measured(result.result, time.monotonic() - begun)
        return result

    def _until_next(self, result: ReconcileResult) -> float:
        resync = self._resync()
        return min(resync, max(0.0, (result.wake - self._clock()).total_seconds())) if result.wake else resync


async def _wait_at_most(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, at most `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
