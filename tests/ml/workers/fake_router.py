"""Doubles of verl's router and of its servers, for tests of the clients of rollout servers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from verl_omni.workers.rollout.diffusion_output import DiffusionOutput

CONFIG = SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=SimpleNamespace(name="vllm_omni")))


class Call:
    """An actor's method."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self.call = call

    async def _made(self, *args: Any, **kwargs: Any) -> Any:
        made = self.call(*args, **kwargs)
        if isinstance(made, Exception):
            raise made
        return made

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        return self._made(*args, **kwargs)


class Router:
    """verl's load balancer with one server, which returns its outputs in order; releases are counted."""

    def __init__(self, *answers: Any, missing: bool = False) -> None:
        self.requests: list[dict[str, Any]] = []
        self.released: list[str] = []
        left = list(answers)

        def answer(**request: Any) -> Any:
            self.requests.append(request)
            return left.pop(0)

        server = SimpleNamespace(generate=Call(answer))
        unavailable = RuntimeError("No available servers in load balancer")
        self.acquire_server = Call(lambda request_id: unavailable if missing else ("10.0.0.1:81", server))
        self.require_acquire_fields = self.require_release_fields = Call(list)
        self.release_server = SimpleNamespace(remote=self._release)

    def _release(self, *, server_id: str) -> None:
        self.released.append(server_id)


def sample(version: int | None, reason: str = "completed") -> DiffusionOutput:
    return DiffusionOutput(diffusion_output=torch.zeros(1), stop_reason=reason, extra_fields={"global_steps": version})


async def ask(client: Any) -> Any:
    async with asyncio.timeout(30):
        return await client.generate("r", prompt_ids=[1], sampling_params={}, negative_prompt_ids=[2])
