"""Requests and weight updates of a language model, whose workers do not say which weights an answer is from."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from verl_omni.weight_sync.errors import PartialWeights, WeightSyncError, parse_error
from verl_omni.workers.rollout.vllm_rollout.server.engine_replies import EngineControlError, check_worker_replies


class WeightsGate:
    """No weight changes while a request is being answered, and no answer begins while they change."""

    def __init__(self) -> None:
        self._answering = 0
        self._free = asyncio.Event()
        self._free.set()
        self._torn: str | None = None

    @asynccontextmanager
    async def request(self) -> AsyncIterator[None]:
        """As long as this context lasts, weights stay what they are.

        Raises:
            PartialWeights: the last update broke off half-way, and none has mended it.
        """
        while not self._free.is_set():
            await self._free.wait()
        if self._torn is not None:
            raise PartialWeights(self._torn)
        self._answering += 1
        try:
            yield
        finally:
            self._answering -= 1

    @contextmanager
    def update(self) -> Iterator[None]:
        """As long as this context lasts, requests wait.

        Raises:
            WeightSyncError: requests are being answered, or another update runs.
        """
        if self._answering or not self._free.is_set():
            busy = f"{self._answering} requests are being answered: abort them, or let them end, first"
            raise WeightSyncError(busy if self._answering else "another update runs")
        self._free.clear()
        try:
            yield
        finally:
            self._free.set()

    def check_update_replies(self, method: str, answers: Iterable[Any]) -> list[Any]:
        """`check_worker_replies` of an update, whose answers say whether the weights are whole.

        Raises:
            EngineControlError: any worker failed.
        """
        try:
            flat = check_worker_replies(method, answers)
        except EngineControlError as error:
            if isinstance(cause := parse_error(str(error)), PartialWeights):
                self._torn = cause.args[0]
            raise
        if not any(answer["lora"] for answer in flat):  # an adapter mends nothing
            self._torn = None
        return flat
