"""The HTTP side of a server: vLLM-Omni's routes, served with the weights that training published last."""

from __future__ import annotations

import argparse
import asyncio
import copy
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

from verl_omni.workers.rollout.vllm_rollout.server.engine_replies import last_output


class PolicyEngine:
    """The engine as its HTTP app sees it: a request that names no adapter is answered with the policy's.

    Args:
        policy: gives the policy's LoRA request, or None where there is no adapter, for as long as a request lasts.
    """

    def __init__(self, engine: Any, policy: Callable[[], AbstractAsyncContextManager[Any]]) -> None:
        self._engine, self._policy = engine, policy

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def generate(
        self,
        prompt: Any,
        sampling_params: Any = None,
        request_id: str = "",
        *,
        sampling_params_list: Sequence[Any] | None = None,
        lora_request: Any = None,
        session_id: str | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[Any]:
        """`AsyncOmni.generate`. Several samples of one prompt are a request each: sample i has the seed plus i.

        Args:
            sampling_params: those of a language model, from routes of vLLM.
            sampling_params_list: one for each stage; a diffusion stage's name its adapter themselves.
            session_id: vLLM's routes give it, vLLM-Omni's engine does not take it.
        """
        async with self._policy() as lora:
            params = list(sampling_params_list or ())
            drawing = [each for each in params if hasattr(each, "lora_request")]
            for each in drawing:
                each.lora_request = each.lora_request or lora
            if not drawing:
                lora_request = lora_request or lora
            count = getattr(params[-1], "num_outputs_per_prompt", 1) if params else 1
            if count > 1:
                yield await self._several(count, request_id, params, prompt=prompt, **kwargs)
                return
            async for output in self._engine.generate(
                prompt=prompt, sampling_params=sampling_params, request_id=request_id,
                sampling_params_list=sampling_params_list, lora_request=lora_request, **kwargs,
            ):  # fmt: skip
                yield output

    async def _several(self, count: int, request_id: str, params: list[Any], **kwargs: Any) -> Any:
        """One answer with the samples of `count` requests; the first failure ends the others."""

        def one(number: int) -> Any:
            own = copy.deepcopy(params)
            own[-1].num_outputs_per_prompt = 1
            if own[-1].seed is not None:
                own[-1].seed += number
            return last_output(
                self._engine.generate(request_id=f"{request_id}-{number}", sampling_params_list=own, **kwargs)
            )

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(number)) for number in range(count)]
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        answers = [task.result() for task in tasks]
        return replace(answers[0], images=[image for answer in answers for image in answer.images])


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
