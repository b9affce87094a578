"""Doubles of verl's router and of its servers, for tests of the clients of rollout servers."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from ray.exceptions import RayError

from verl_omni.workers.rollout.output_groups import OutputGroup, in_groups
from verl_omni.workers.rollout.replica import DiffusionOutput

CONFIG = SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=SimpleNamespace(name="vllm_omni")))


class Call:
    """An actor's method."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self.call = call

    async def _made(self, *args: Any, **kwargs: Any) -> Any:
        answer = self.call(*args, **kwargs)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        return self._made(*args, **kwargs)


class Server:
    """A server's handle, which answers batches with `generate`: an awaitable for the arguments of each request.

    An error of Ray ends the call; others take the place of an output.
    """

    def __init__(self, generate: Callable[..., Awaitable[Any]]) -> None:
        self.generate = generate
        self.calls: list[int] = []
        self.generate_batch = SimpleNamespace(remote=self._stream)

    async def _stream(self, requests: Sequence[dict[str, Any]]) -> AsyncIterator[Awaitable[OutputGroup]]:
        self.calls.append(len(requests))

        async def one(request: dict[str, Any]) -> Any:
            return await self.generate(**request)

        async for ended in in_groups([one(request) for request in requests]):
            for _, output in ended:
                if isinstance(output, RayError):
                    raise output
            group: asyncio.Future[OutputGroup] = asyncio.get_running_loop().create_future()
            group.set_result(OutputGroup.of(ended))
            yield group


class ActorCalls:
    """`__ray_call__` of a fake router; `answers`, once it is set, is awaited before an answer."""

    def __init__(self, router: Any) -> None:
        self.router = router
        self.called: list[str] = []
        self.answers = asyncio.Event()
        self.answers.set()

    def remote(self, function: Callable[..., Any], *args: Any) -> Any:
        self.called.append(function.__name__)
        try:
            answer = function(self.router, *args)
        except Exception as error:
            answer = error
        return asyncio.ensure_future(self._answer(answer))

    async def _answer(self, made: Any) -> Any:
        await self.answers.wait()
        if isinstance(made, Exception):
            raise made
        return made


class Router:
    """verl's load balancer with one server, which returns its outputs in order; releases are counted."""

    def __init__(self, *answers: Any) -> None:
        self.requests: list[dict[str, Any]] = []
        self.released: list[str] = []
        left = list(answers)

        def answer(**request: Any) -> Any:
            self.requests.append(request)
            return left.pop(0)

        self.server = Server(Call(answer).remote)
        self.require_acquire_fields = self.require_release_fields = Call(list)
        self.__ray_call__ = ActorCalls(self)

    def acquire_server(self, request_id: str) -> tuple[str, Any]:
        return "10.0.0.1:81", self.server

    def release_server(self, *, server_id: str) -> None:
        self.released.append(server_id)


def sample(version: int | None, reason: str = "completed") -> DiffusionOutput:
    return DiffusionOutput(diffusion_output=torch.zeros(1), stop_reason=reason, extra_fields={"global_steps": version})


async def ask(client: Any) -> Any:
    async with asyncio.timeout(30):
        return await client.generate("r", prompt_ids=[1], sampling_params={}, negative_prompt_ids=[2])
