"""`JudgeServer`: verl's server of vLLM, which can be stopped."""

from __future__ import annotations

from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer


class JudgeServer(vLLMHttpServer):  # type: ignore[misc]
    """HTTP server of one judge replica, with vLLM's routes such as /v1/chat/completions."""

    async def shutdown(self) -> None:
        """Stop the engine's process, which would survive this one if Ray killed it."""
        self.engine.shutdown()
