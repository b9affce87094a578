"""Queue of jobs: passes over a job never overlap, several triggers are merged into one pass, idle jobs have no task.

A job is queued, in a pass, or asleep until a time in a heap. Namespaces take turns, so that the jobs of one namespace
do not delay the jobs of another. No namespace can occupy all running passes, which may wait for a slow webhook. Within
a namespace, a pass that asks for another one at once gets it before other jobs have a pass, while its parsed objects
are still cached. The queue starts at most one pass per turn of the event loop: most passes make no request, so more of
them would delay everything else in the process.
"""

import asyncio
import contextvars
import heapq
import itertools
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime

from omni_operator.cluster.errors import ClusterError, Unavailable
from omni_operator.cluster.kinds import Key
from omni_operator.reconcile.subject import ReconcileResult

BACKOFF_FIRST = 1.0
BACKOFF_MOST = 300.0
CONTINUED = -1  # rank of a job whose last pass asked for another one at once
CONTINUED_MOST = 8  # such passes in a row before each further one follows a pause
STALE_ENTRIES = 64  # entries of the heap beyond two for each job before it is rebuilt
log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Job:
    """Attributes:
    key: the one tuple that queue and heap refer to.
    queued: whether it waits for a pass.
    running: whether a pass is under way.
    woken: whether it was woken during the pass.
    continued: passes in a row that asked for another one at once.
    failures: failed passes in a row.
    revision: the job's revision at its last pass, if that failed.
    wake_at: time of its next pass while it sleeps.
    """

    key: Key
    queued: bool = False
    running: bool = False
    woken: bool = False
    continued: int = 0
    failures: int = 0
    revision: object = None
    wake_at: float = 0.0


class JobWorkers:
    """Passes over all jobs.

    Args:
        reconcile: makes one pass over a job.
        rank: order of waiting jobs of a namespace, smallest first; jobs of the same rank keep their order of arrival.
        revision: changes when a job's spec changes, when its deletion begins and when it is gone.
        resync: seconds until the next pass over a job without events, with jitter.
        measured: called with result and seconds of every pass.
        passes: maximum number of concurrent passes, half of them over jobs of one namespace.
        started: whether to make passes before `start` is called.
    """

    def __init__(
        self,
        reconcile: Callable[[Key], Awaitable[ReconcileResult]],
        *,
        rank: Callable[[Key], int],
        revision: Callable[[Key], object],
        resync: Callable[[], float],
        measured: Callable[[str, float], None],
        clock: Callable[[], datetime],
        passes: int,
        started: bool = True,
    ) -> None:
        self._reconcile = reconcile
        self._rank = rank
        self._revision = revision
        self._resync = resync
        self._measured = measured
        self._clock = clock
        self._passes = passes
        self._share = max(1, passes // 2)
        self._jobs: dict[Key, _Job] = {}
        self._order = itertools.count()
        self._queues: OrderedDict[str, list[tuple[int, int, Key]]] = OrderedDict()  # by namespace, next turn first
        self._running: Counter[str] = Counter()  # passes under way by namespace
        self._sleeping: list[tuple[float, Key]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._starting: asyncio.Handle | None = None
        self._stopping = not started

    def wake(self, key: Key) -> None:
        """Schedule a pass over a job: now, or after the current one. A backoff ends only if the job changed.

        Jobs that are woken while no passes are made are ignored.
        """
        if self._stopping:
            return
        job = self._jobs.get(key)
        if job is None:
            job = self._jobs[key] = _Job(key)
        if job.running:
            job.woken = True
        elif not (job.failures and job.revision == self._revision(key)):
            self._enqueue(job)

    @property
    def depth(self) -> int:
        """Number of jobs that wait for a pass."""
        return sum(map(len, self._queues.values()))

    @property
    def tasks(self) -> int:
        """Number of passes under way."""
        return len(self._tasks)

    def start(self) -> None:
        """Make passes again, over the jobs that are woken from now on."""
        self._stopping = False

    async def stop(self, seconds: float) -> bool:
        """Start no new passes, cancel running ones after `seconds`, forget all jobs.

        Returns:
            Whether no pass was cancelled.
        """
        self._stopping = True
        for handle in (self._timer, self._starting):
            if handle:
                handle.cancel()
        self._timer = self._starting = None
        running: set[asyncio.Task[None]] = set()
        if self._tasks:
            _, running = await asyncio.wait(self._tasks, timeout=seconds)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        self._jobs.clear()
        self._queues.clear()
        self._sleeping.clear()
        return not running

    def _enqueue(self, job: _Job, rank: int | None = None) -> None:
        if not job.queued:
            job.queued = True
            job.wake_at = 0.0
            waiting = self._queues.setdefault(job.key[0], [])
            heapq.heappush(waiting, (self._rank(job.key) if rank is None else rank, next(self._order), job.key))
        self._start_soon()

    def _next_namespace(self) -> str | None:
        """The namespace whose turn it is; None if no pass can start."""
        if len(self._tasks) >= self._passes:
            return None
        return next((name for name in self._queues if self._running[name] < self._share), None)

    def _start_soon(self) -> None:
        if self._starting is None and not self._stopping and self._next_namespace() is not None:
            self._starting = asyncio.get_running_loop().call_soon(self._start)

    def _start(self) -> None:
        """Start one pass, and another one at the next turn of the event loop."""
        self._starting = None
        namespace = self._next_namespace()
        if namespace is None:
            return
        waiting = self._queues[namespace]
        _, _, key = heapq.heappop(waiting)
        self._queues.move_to_end(namespace)
        if not waiting:
            del self._queues[namespace]
        self._running[namespace] += 1
        job = self._jobs[key]
        job.queued = False
        job.running = True
        job.woken = False
        # A new context: otherwise the pass would keep the trigger's context alive as long as it runs.
        name = f"job {key[0]}/{key[1]}"
        context = contextvars.Context()
        task = asyncio.get_running_loop().create_task(self._run(job), name=name, context=context)
        self._tasks.add(task)

        def ended(_: object) -> None:
            self._tasks.discard(task)
            self._running -= Counter([namespace])  # which also forgets those without any
            self._start_soon()

        task.add_done_callback(ended)
        self._start_soon()

    async def _run(self, job: _Job) -> None:
        key = job.key
        revision = self._revision(key)
        outcome = await self._pass(key, job.failures)
        job.running = False
        if isinstance(outcome, float):
            job.failures = job.failures + 1
            job.revision = revision
            pause = outcome
            again = job.woken and self._revision(key) != revision
        else:
            job.failures = 0
            job.revision = None
            pause = 0.0 if outcome.gone else self._until_next(outcome)
            job.continued = 0 if pause else job.continued + 1
            if job.continued > CONTINUED_MOST:
                pause = _backoff(job.continued - CONTINUED_MOST - 1)
            again = job.woken
        if again:
            job.failures = 0
            self._enqueue(job)
        elif not isinstance(outcome, float) and outcome.gone:
            del self._jobs[key]
            self._drop_stale_entries()
        elif not pause:
            self._enqueue(job, CONTINUED)
        else:
            self._sleep(job, pause)

    def _sleep(self, job: _Job, seconds: float) -> None:
        job.wake_at = asyncio.get_running_loop().time() + seconds
        self._drop_stale_entries()
        heapq.heappush(self._sleeping, (job.wake_at, job.key))
        self._set_timer()

    def _drop_stale_entries(self) -> None:
        """Rebuild the heap if most of its entries were left behind by jobs that were woken or are gone."""
        if len(self._sleeping) > 2 * len(self._jobs) + STALE_ENTRIES:
            self._sleeping = [(at, key) for at, key in self._sleeping if self._sleeps(at, key)]
            heapq.heapify(self._sleeping)

    def _sleeps(self, at: float, key: Key) -> bool:
        job = self._jobs.get(key)
        return job is not None and job.wake_at == at

    def _set_timer(self) -> None:
        if not self._sleeping or self._stopping or (self._timer and self._timer.when() <= self._sleeping[0][0]):
            return
        if self._timer:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(self._sleeping[0][0], self._wake_sleepers)

    def _wake_sleepers(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        while self._sleeping and self._sleeping[0][0] <= now:
            at, key = heapq.heappop(self._sleeping)
            if self._sleeps(at, key):
                self._enqueue(self._jobs[key])
        self._set_timer()

    async def _pass(self, key: Key, failures: int) -> ReconcileResult | float:
        """Make one pass; if it fails, return the seconds to wait before the next."""
        begun = time.monotonic()
        pause = _backoff(failures)
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


def _backoff(times: int) -> float:
    """Seconds of a pause after as many earlier ones in a row."""
    return min(BACKOFF_FIRST * 2 ** min(times, 16), BACKOFF_MOST)
