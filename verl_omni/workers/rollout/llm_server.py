"""Clients of the rollout servers: one that names the replica in an error, one that asks again for aborted samples."""

from __future__ import annotations

import asyncio
from typing import Any

from typing_extensions import override
from verl.workers.rollout.llm_server import LLMServerClient

from verl_omni.utils.errors import ReplicaError
from verl_omni.workers.rollout.replica import DiffusionOutput


class ReplicaFailed(RuntimeError):
    """A replica could not be asked, or is gone; the message names it, the cause is kept."""


class DiffusionLLMServerClient(LLMServerClient):  # type: ignore[misc]
    """verl's client, whose errors say which replica had the request."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._serving: dict[str, str] = {}

    @override
    async def _acquire_server(self, request_id: str, **extra: Any) -> tuple[str, Any]:
        server_id, server = await super()._acquire_server(request_id, **extra)
        self._serving[request_id] = server_id
        return server_id, server

    @override
    async def generate(self, request_id: str, **kwargs: Any) -> DiffusionOutput:
        """Make one sample; arguments as in `vLLMOmniHttpServer.generate`.

        Raises:
            ReplicaError: the replica's engine failed.
            ReplicaFailed: the replica raised something else, or is gone.
        """
        try:
            return await super().generate(request_id, **kwargs)
        except ReplicaError as error:
            # It names the replica. What Ray wraps around it on the way is a text of the whole traceback.
            raise getattr(error, "cause", error) from error
        except Exception as error:
            if (server_id := self._serving.get(request_id)) is None:
                raise  # no replica was found
            raise ReplicaFailed(f"replica {server_id}: {type(error).__name__}: {error}") from error
        finally:
            self._serving.pop(request_id, None)


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
            ReplicaError, ReplicaFailed: the replica failed; that is not tried again.
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
