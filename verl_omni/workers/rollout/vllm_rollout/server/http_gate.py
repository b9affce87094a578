"""`HttpGate`: holds requests over HTTP while the engine sleeps or its weights change."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any

CANCEL_SECONDS = 60.0  # for the engine to drop cancelled requests


class NotServed(RuntimeError):
    """A request over HTTP was not admitted in time, or was ended by a weight update or a sleep. HTTP status 503."""


class HttpGate:
    """Admits requests over HTTP while the engine is awake and its weights do not change.

    Training does not wait for these requests: when the gate closes, those in flight are cancelled, and start again when
    it is open, with the weights of then. So every answer is of one version.

    Args:
        deadline: seconds for a request to be admitted (`rollout.deadline_seconds`).
        counted: context of each request, also while it is held.
    """

    def __init__(self, deadline: float, counted: Callable[[], AbstractContextManager[None]]) -> None:
        self._deadline = deadline
        self._counted = counted
        self._closed_for: dict[object, str] = {}  # why, by key
        self._open = asyncio.Event()
        self._open.set()
        self._in_flight: set[asyncio.Task[None]] = set()

    async def close(self, key: object, reason: str) -> None:
        """Hold requests until `open` with the same key, and cancel those in flight.

        Returns when the engine has none of them.

        Args:
            reason: completes the sentence "the request is held, because …".

        Raises:
            TimeoutError: the engine did not drop them within `CANCEL_SECONDS`. The gate is closed all the same.
        """
        self._closed_for[key] = reason
        self._open.clear()
        cancelled = set(self._in_flight)
        for task in cancelled:
            task.cancel()
        if cancelled and (left := (await asyncio.wait(cancelled, timeout=CANCEL_SECONDS))[1]):
            raise TimeoutError(
                f"timeout after {CANCEL_SECONDS:g} s while the engine drops {len(left)} requests over HTTP, "
                f"because {reason}"
            )

    def open(self, key: object) -> None:
        """Admit requests, unless the gate is closed with another key too; without effect if it is not closed."""
        self._closed_for.pop(key, None)
        if not self._closed_for:
            self._open.set()

    @asynccontextmanager
    async def closed(self, reason: str) -> AsyncIterator[None]:
        """The gate is closed in the block. Arguments and errors as of `close`."""
        key = object()
        try:
            await self.close(key, reason)
            yield
        finally:
            self.open(key)

    async def run(self, outputs: Callable[[], AsyncIterator[Any]], *, repeatable: bool = True) -> AsyncIterator[Any]:
        """The outputs of a request.

        Args:
            outputs: starts the request in the engine.
            repeatable: whether it may be called again. A request that has had an output is not started again either.

        Raises:
            NotServed: the deadline passed while the gate was closed, or a request that cannot start again was ended.
            Any error raised by iterating `outputs`.
        """
        until = asyncio.get_running_loop().time() + self._deadline
        with self._counted():
            while True:
                await self._admitted(until)
                queue: asyncio.Queue[Any] = asyncio.Queue()
                # In a task, so that it can be cancelled while a client reads slowly.
                task = asyncio.create_task(_pass_on(outputs(), queue))
                self._in_flight.add(task)
                task.add_done_callback(self._in_flight.discard)
                task.add_done_callback(queue.put_nowait)  # after all outputs, and also if it is cancelled at once
                try:
                    while (output := await queue.get()) is not task:
                        repeatable = False
                        yield output
                finally:
                    task.cancel()
                    await asyncio.wait({task})
                if not task.cancelled():
                    task.result()
                    return
                if not repeatable:
                    raise NotServed(f"the request was ended, because {self._reason()}: send it again")

    async def _admitted(self, until: float) -> None:
        while self._closed_for:
            try:
                async with asyncio.timeout_at(until):
                    await self._open.wait()
            except TimeoutError:
                raise NotServed(
                    f"the request was not admitted within {self._deadline:g} s (rollout.deadline_seconds), because "
                    f"{self._reason()}: send it again later"
                ) from None

    def _reason(self) -> str:
        return " and ".join(self._closed_for.values()) or "the weights were updated"


async def _pass_on(outputs: AsyncIterator[Any], queue: asyncio.Queue[Any]) -> None:
    async for output in outputs:
        queue.put_nowait(output)
