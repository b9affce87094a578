"""The HTTP side of a server: vLLM-Omni's routes, served with the weights that training published last."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any


class PolicyEngine:
    """The engine as its HTTP app sees it: a request that names no adapter is drawn with the policy's.

    Args:
        policy: gives the policy's LoRA request, or None where there is no adapter.
    """

    def __init__(self, engine: Any, policy: Callable[[], Awaitable[Any]]) -> None:
        self._engine, self._policy = engine, policy

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def generate(
        self, *args: Any, sampling_params_list: Sequence[Any] | None = None, **kwargs: Any
    ) -> AsyncIterator[Any]:
        """`AsyncOmni.generate`."""
        lora = await self._policy()
        for params in sampling_params_list or ():
            if getattr(params, "lora_request", lora) is None:
                params.lora_request = lora
        async for output in self._engine.generate(*args, sampling_params_list=sampling_params_list, **kwargs):
            yield output


async def http_app(engine: PolicyEngine, args: argparse.Namespace) -> Any:
    """vLLM's app with vLLM-Omni's routes (`/v1/images/generations` and others) before vLLM's own, and `/metrics`."""
    from vllm.entrypoints.openai.api_server import build_app
    from vllm_omni.entrypoints.openai.api_server import omni_init_app_state, router

    app = build_app(args, tuple(await engine.get_supported_tasks()))
    upstream = list(app.router.routes)
    app.include_router(router)
    # The first that matches answers: both have /health, /v1/models and /v1/chat/completions.
    ours = [route for route in app.router.routes if route not in upstream]
    app.router.routes[:] = [*ours, *upstream]
    await omni_init_app_state(engine, app.state, args)
    return app
