"""verl's replica, none of whose calls to its servers waits for ever."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from typing_extensions import override
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMReplica

from verl_omni.workers.rollout.answers import answered


class AnsweringReplica(vLLMReplica):  # type: ignore[misc]
    """Each call raises `ReplicaFailed`, which names the replica, after `rollout.deadline_seconds` without an answer."""

    async def _answered(self, asked: str, answer: Awaitable[Any]) -> Any:
        return await answered(answer, replica=self.replica_rank, asked=asked, deadline=self.config.deadline_seconds)

    @override
    async def sleep(self) -> None:
        await self._answered("sleep", super().sleep())

    @override
    async def wake_up(self) -> None:
        await self._answered("wake_up", super().wake_up())

    @override
    async def abort_all_requests(self, reject_request: bool = False) -> dict[str, Any]:
        found: dict[str, Any] = await self._answered("abort_all_requests", super().abort_all_requests(reject_request))
        return found

    @override
    async def abort_request(self, request_id: str) -> dict[str, Any]:
        found: dict[str, Any] = await self._answered("abort_request", super().abort_request(request_id))
        return found

    @override
    async def resume_generation(self) -> None:
        await self._answered("resume_generation", super().resume_generation())

    @override
    async def clear_kv_cache(self) -> None:
        await self._answered("clear_kv_cache", super().clear_kv_cache())

    @override
    async def release_kv_cache(self) -> None:
        await self._answered("release_kv_cache", super().release_kv_cache())

    @override
    async def resume_kv_cache(self) -> None:
        await self._answered("resume_kv_cache", super().resume_kv_cache())
