"""Queue of one scorer: waiting samples, a limited number of calls at a time, a deadline for each call."""

import asyncio
import concurrent.futures
import inspect
import os
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from verl_omni.reward_loop.scorer_results import error_text
from verl_omni.reward_loop.scorer_signature import GROUPS, PLURAL, taken_by, takes_groups, takes_lists

Scorer = Callable[..., Any]
Waiting = tuple[Mapping[str, Any], asyncio.Future[Any]]  # a sample and its result
Group = tuple[str, int]  # a prompt's name, and the number of its samples
# Calls at a time of a plain function, which runs in threads: as many as Python's default executor has.
THREADS = min(32, (os.cpu_count() or 1) + 4)
COROUTINES = 64  # calls at a time of an async function
# Shorter calls of Python code hold each other up: 128 of 1 ms each take 0.4 s of CPU in six threads, 0.13 s in one.
QUICK_SECONDS = 0.01
WAITING_SECONDS = 0.1  # a call that takes longer waits for something, or computes for long
SLOW_CALLS = 3  # in a row: a single one is due to a busy machine
DEADLINE_SECONDS = 600.0  # for configurations without `reward.deadline_seconds`


class ScoringQueue:
    """Calls a scorer for samples in the order of their arrival.

    A scorer that takes lists is called once at a time, with all samples that wait, up to `batch_size`; it never waits
    for more. If such a call fails, each of its samples is scored alone, so that one which cannot be scored fails no
    other; but not after an error that is due to no sample (`OF_NO_SAMPLE`). Other scorers get one sample a call, and
    several calls run at a time. Calls of a plain function run one at a time until one takes longer than
    `WAITING_SECONDS`, or `SLOW_CALLS` in a row longer than `QUICK_SECONDS`.

    A scorer that takes groups gets whole groups, at least one, and a group is scored alone instead of a sample.

    A plain function cannot be interrupted, so a call that has timed out counts as running until it returns. If such
    calls occupy every thread, waiting samples wait for one of them for another `deadline_seconds`. Then they fail, as
    do new ones, until a call returns.

    Args:
        scorer: a plain or an async function. It gets those arguments of a sample that it has parameters for.
        settings: further arguments of each call.
        batch_size: maximum number of samples in a call of a scorer that takes lists.
        deadline_seconds: timeout of a call. Waiting for the call does not count.
        timeout: makes the timeout of a call, as `asyncio.timeout` does.
        running: entered around each call.
    """

    def __init__(
        self,
        scorer: Scorer,
        settings: Mapping[str, Any],
        *,
        batch_size: int,
        deadline_seconds: float,
        timeout: Callable[[float], asyncio.Timeout] = asyncio.timeout,
        running: Callable[[], AbstractAsyncContextManager[Any]] = nullcontext,
    ) -> None:
        self._scorer = scorer
        self._settings = dict(settings)
        self._timeout = timeout
        self._running = running
        self._lists = takes_lists(scorer)
        self._group_wise = takes_groups(scorer)
        self._batch_size = batch_size if self._lists else 1
        self._is_async = inspect.iscoroutinefunction(scorer)
        self._free = self._limit = 1 if self._lists else COROUTINES if self._is_async else THREADS
        self._stuck = 0  # calls that had not returned one more deadline after their own
        self._threads = None if self._is_async else ThreadPoolExecutor(self._limit, thread_name_prefix="scorer")
        self._width = 1 if self._threads else self._limit  # calls that may run at a time for now
        self._slow_calls = 0  # the last ones, in a row, while one runs at a time
        self._deadline = deadline_seconds
        # Samples that are scored in the same call: a whole group, otherwise one sample.
        self._waiting: deque[list[Waiting]] = deque()
        self._alone: deque[list[Waiting]] = deque()  # samples of calls that failed
        self._incomplete: dict[str, list[Waiting]] = {}  # groups of which samples are missing
        self._calls: set[asyncio.Task[None]] = set()

    async def score(self, sample: Mapping[str, Any], group: Group | None = None) -> Any:
        """Result of the scorer for a sample.

        Args:
            sample: arguments of a scorer that takes one sample.
            group: of the sample; for scorers that take groups.

        Raises:
            ValueError: the scorer takes groups, and the sample has none.
            TimeoutError: the scorer's call did not end within the deadline, or calls that do not return occupy every
                thread.
            WrongCount: a scorer that takes lists did not return a result for each sample.
            ForbiddenRaise: the scorer raised an exception that ends processes or cancels tasks.
            Exception: any other that the scorer raised.
        """
        result: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if not self._group_wise:
            self._waiting.append([(sample, result)])
        elif group is None:
            raise ValueError(f"a sample has no group, and the scorer has a parameter {GROUPS}: {NO_GROUP}")
        else:
            name, size = group
            members = self._incomplete.setdefault(name, [])
            members.append(({**sample, GROUPS: name}, result))
            if len(members) == size:
                self._waiting.append(self._incomplete.pop(name))
        self._start_calls()
        return await result

    def _start_calls(self) -> None:
        while self._free > self._limit - self._width and (chosen := self._next_batch()):
            self._free -= 1
            call = asyncio.ensure_future(self._run(chosen))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)
        if self._stuck == self._limit:
            for _, result in (waiting for unit in (*self._alone, *self._waiting) for waiting in unit):
                if not result.done():
                    result.set_exception(TimeoutError(self._text_of_stuck_calls()))
            self._alone.clear()
            self._waiting.clear()

    def _text_of_stuck_calls(self) -> str:
        return (
            f"no thread is free for the scorer: {self._stuck} of {self._limit} calls at a time have been running for "
            f"more than {2 * self._deadline:g} s, twice reward.deadline_seconds; the function may wait for something "
            "that never happens"
        )

    def _next_batch(self) -> list[list[Waiting]]:
        for source, limit in ((self._alone, 1), (self._waiting, self._batch_size)):
            chosen: list[list[Waiting]] = []
            count = 0
            while source and (not chosen or count + len(source[0]) <= limit):
                unit = [entry for entry in source.popleft() if not entry[1].done()]  # done: its caller was cancelled
                if unit:
                    chosen.append(unit)
                    count += len(unit)
            if chosen:
                return chosen
        return []

    async def _run(self, chosen: Sequence[list[Waiting]]) -> None:
        results = [result for unit in chosen for _, result in unit]
        samples = [sample for unit in chosen for sample, _ in unit]
        loop = asyncio.get_running_loop()
        call = loop.create_task(self._call(samples))
        began = loop.time()
        slow = loop.call_later(WAITING_SECONDS, self._widen)
        try:
            values = await self._within_deadline(call if self._is_async else asyncio.shield(call))
        except Exception as error:  # noqa: BLE001 - the caller of each sample gets it
            if len(chosen) > 1 and not isinstance(error, OF_NO_SAMPLE):
                self._alone.extend(chosen)
                return
            for result in results:
                if not result.done():
                    result.set_exception(error)
        else:
            for result, value in zip(results, values, strict=True):
                if not result.done():
                    result.set_result(value)
        finally:
            await self._wait_until_returned(call)
            slow.cancel()
            self._free += 1
            if self._threads and self._free == self._limit:
                is_slow = self._width == 1 and loop.time() - began > QUICK_SECONDS
                self._slow_calls = self._slow_calls + 1 if is_slow else 0
                self._width = self._limit if self._slow_calls >= SLOW_CALLS else 1
            self._start_calls()

    def _widen(self) -> None:
        """Let other threads call the scorer too."""
        self._width = self._limit
        self._start_calls()

    async def _wait_until_returned(self, call: asyncio.Future[Any]) -> None:
        """Wait for a call that may have timed out; after another deadline it counts as stuck."""
        if call.done() or not (await asyncio.wait({call}, timeout=self._deadline))[1]:
            return
        self._stuck += 1
        self._start_calls()
        try:
            await asyncio.wait({call})
        finally:
            self._stuck -= 1

    async def _within_deadline(self, call: Awaitable[Sequence[Any]]) -> Sequence[Any]:
        limit = self._timeout(self._deadline)
        try:
            async with limit:
                return await call
        except TimeoutError as error:
            if not limit.expired():
                raise  # the scorer's own
            raise TimeoutError(f"no score within {self._deadline:g} s (reward.deadline_seconds)") from error

    async def _call(self, samples: Sequence[Mapping[str, Any]]) -> Sequence[Any]:
        if not self._lists:
            return [await self._invoke(samples[0])]
        columns = {PLURAL[name]: [sample[name] for sample in samples] for name in PLURAL}
        if self._group_wise:
            columns[GROUPS] = [sample[GROUPS] for sample in samples]
        others = {name: value for name, value in samples[0].items() if name not in (*PLURAL, GROUPS)}
        results = await self._invoke({**columns, **others})
        if isinstance(results, (np.ndarray, Tensor)):
            results = results.tolist()
        if not isinstance(results, Sequence) or len(results) != len(samples):
            number = len(results) if isinstance(results, Sequence) else type(results).__name__
            raise WrongCount(f"the scorer must return a list of {len(samples)} results, one a sample, not {number}")
        return results

    async def _invoke(self, arguments: Mapping[str, Any]) -> Any:
        bound = partial(self._scorer, **taken_by(self._scorer, arguments), **self._settings)
        async with self._running():
            if self._is_async:
                return await _awaited(bound)
            return await asyncio.get_running_loop().run_in_executor(self._threads, _called, bound)


NO_GROUP = "define it with `def` and without a decorator, so that the trainer reads its parameters before the start"


class WrongCount(ValueError):
    """A scorer that takes lists did not return a result for each sample."""


class ForbiddenRaise(RuntimeError):
    """A scorer raised what would end the reward worker, or would never reach the caller of a task."""


OF_NO_SAMPLE = (TimeoutError, ConnectionError, WrongCount)


def _called(scorer: Scorer) -> Any:
    """Call a plain function in its thread."""
    try:
        return scorer()
    except (StopIteration, concurrent.futures.CancelledError) as error:  # a future cannot hold them
        raise _forbidden(error) from error
    except Exception:
        raise
    except BaseException as error:
        raise _forbidden(error) from error


async def _awaited(scorer: Scorer) -> Any:
    try:
        return await scorer()
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise _forbidden(error) from error
    except (SystemExit, KeyboardInterrupt) as error:
        raise _forbidden(error) from error


def _forbidden(error: BaseException) -> ForbiddenRaise:
    return ForbiddenRaise(f"it raised {error_text(error)}; raise another exception, or return a score")
