"""Clients of the rollout servers: one that names the replica in an error, one that asks again for aborted samples."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from typing_extensions import override
from verl.workers.rollout.llm_server import LLMServerClient

from verl_omni.workers.config.diffusion.rollout import REPLICA_DEADLINE_SECONDS
from verl_omni.workers.rollout.diffusion_output import DiffusionOutput
from verl_omni.workers.rollout.replica_calls import ReplicaCallFailed, ReplicaError


class DiffusionLLMServerClient(LLMServerClient):  # type: ignore[misc]
    """verl's client, whose errors say which replica had the request.

    A replica that owes samples and answers none for `rollout.deadline_seconds` is given up: it may be stopped, or
    behind a broken network, where Ray waits for ever. The time does not run while others of its samples come, so it
    need not grow with the batch.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        rollout = self.config.actor_rollout_ref.rollout
        self._deadline = float(getattr(rollout, "deadline_seconds", REPLICA_DEADLINE_SECONDS))
        self._serving: dict[str, tuple[str, float]] = {}  # which replica has a request, and since when
        self._heard: dict[str, float] = {}  # when a replica last answered

    @override
    async def _acquire_server(self, request_id: str, **extra: Any) -> tuple[str, Any]:
        server_id, server = await super()._acquire_server(request_id, **extra)
        self._serving[request_id] = server_id, asyncio.get_running_loop().time()
        return server_id, server

    @override
    async def generate(self, request_id: str, **kwargs: Any) -> DiffusionOutput:
        """Make one sample; arguments as in `vLLMOmniHttpServer.generate`.

        Raises:
            ReplicaError: the replica's engine failed.
            ReplicaCallFailed: the replica raised something else, is gone, or has answered nothing for
                `rollout.deadline_seconds`.
        """
        try:
            return await self._unless_silent(request_id, super().generate(request_id, **kwargs))
        except ReplicaError as error:
            # It names the replica. What Ray wraps around it on the way is a text of the whole traceback.
            raise getattr(error, "cause", error) from error
        except Exception as error:
            if (serving := self._serving.get(request_id)) is None:
                raise  # no replica was found
            raise ReplicaCallFailed(f"replica {serving[0]}: {type(error).__name__}: {error}") from error
        finally:
            self._serving.pop(request_id, None)

    async def _unless_silent(self, request_id: str, answer: Coroutine[Any, Any, DiffusionOutput]) -> DiffusionOutput:
        clock, coming = asyncio.get_running_loop().time, asyncio.ensure_future(answer)
        try:
            while not coming.done():
                replica, since = self._serving.get(request_id, ("", clock()))  # none yet: it is not silent
                left = max(since, self._heard.get(replica, since)) + self._deadline - clock()
                if left <= 0:
                    raise TimeoutError(f"no answer for {self._deadline:g} s (rollout.deadline_seconds)")
                await asyncio.wait({coming}, timeout=left)
            if serving := self._serving.get(request_id):
                self._heard[serving[0]] = clock()
            return coming.result()
        finally:
            coming.cancel()
            await asyncio.wait({coming})


class DiffusionWholeSampleRetryLLMServerClient(DiffusionLLMServerClient):
    """Makes an aborted sample again, whole: what was denoised so far belongs to weights that may be gone.

    For `LLMServerManager.get_client(client_cls=DiffusionWholeSampleRetryLLMServerClient)`.

    Args:
        max_retries: further attempts after the first; a sample that is still aborted then is returned as it is.
        retry_wait_s: seconds before each of them.

    Raises:
        ValueError: `max_retries` is negative.
    """

    def __init__(self, *args: Any, max_retries: int = 50, retry_wait_s: float = 1.0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if max_retries < 0:
            raise ValueError(f"max_retries must not be negative: {max_retries}")
        self.max_retries = max_retries
        self.retry_wait_s = retry_wait_s

    @override
    async def generate(self, request_id: str, **kwargs: Any) -> DiffusionOutput:
        """Make one sample. `min_global_steps` and `max_global_steps` are the weight versions that it spanned.

        Raises:
            ReplicaError, ReplicaCallFailed: the replica failed; that is not tried again.
        """
        output = await super().generate(request_id, **kwargs)
        versions = [output.extra_fields.get("global_steps")]
        for _ in range(self.max_retries):
            if output.stop_reason != "aborted":
                break
            await asyncio.sleep(self.retry_wait_s)
            output = await super().generate(request_id, **kwargs)
            versions.append(output.extra_fields.get("global_steps"))
        if known := [version for version in versions if version is not None]:
            output.extra_fields |= {"min_global_steps": min(known), "max_global_steps": max(known)}
        return output
