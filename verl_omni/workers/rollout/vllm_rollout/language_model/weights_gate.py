"""Mutual exclusion of requests and weight updates, for language models.

Their workers do not report which weights an output is from, so weights must not change during a request.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from verl_omni.weight_sync.errors import PartialWeights, WeightSyncError, parse_error
from verl_omni.workers.rollout.vllm_rollout.server.engine_replies import EngineControlError, check_worker_replies


class WeightsGate:
    """Refuses an update while requests are in flight, and holds requests during an update."""

    def __init__(self) -> None:
        self._in_flight = 0
        self._no_update = asyncio.Event()
        self._no_update.set()
        self._failed_update: str | None = None

    @asynccontextmanager
    async def request(self) -> AsyncIterator[None]:
        """Context of a request, in which weights do not change.

        Raises:
            PartialWeights: the last full update failed part-way, and none has succeeded since.
        """
        while not self._no_update.is_set():
            await self._no_update.wait()
        if self._failed_update is not None:
            raise PartialWeights(self._failed_update)
        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1

    @contextmanager
    def update(self) -> Iterator[None]:
        """Context of an update, in which requests wait.

        Raises:
            WeightSyncError: requests are in flight, or another update is running.
        """
        if self._in_flight or not self._no_update.is_set():
            busy = f"{self._in_flight} requests are in flight: abort them or wait for them before the update"
            raise WeightSyncError(busy if self._in_flight else "another weight update is running")
        self._no_update.clear()
        try:
            yield
        finally:
            self._no_update.set()

    def check_update_replies(self, method: str, replies: Iterable[Any]) -> list[Any]:
        """`check_worker_replies` for an update; records whether the weights are partly written.

        Raises:
            EngineControlError: any worker failed.
        """
        try:
            flat = check_worker_replies(method, replies)
        except EngineControlError as error:
            if isinstance(cause := parse_error(str(error)), PartialWeights):
                self._failed_update = cause.args[0]
            raise
        if not any(reply["lora"] for reply in flat):  # an adapter does not repair partly written weights
            self._failed_update = None
        return flat
