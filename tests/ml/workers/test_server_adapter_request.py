"""Fault 7: asking the engine for its adapters waits behind every forward pass, so the answer is kept."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]  # the server's module takes half a minute to import


class Engine:
    """Counts how often it is asked."""

    default_sampling_params_list = (None,)

    def __init__(self) -> None:
        self.asked = 0
        self.calls: list[tuple[str, Any]] = []

    async def list_loras(self) -> list[int]:
        self.asked += 1
        return [123]

    async def collective_rpc(self, method: str, args: tuple[Any, ...] = (), **call: Any) -> list[Any]:
        self.calls.append((method, args))
        return [{"tensors": 2, "lora": True}]

    async def sleep(self, level: int) -> list[Any]:
        return [SimpleNamespace(status="SUCCESS")]

    async def wake_up(self, tags: list[str]) -> list[Any]:
        return [SimpleNamespace(status="SUCCESS")]


@pytest.fixture
def server() -> Any:
    from verl_omni.workers.rollout.vllm_rollout.server.diffusion_mode import DiffusionMode
    from verl_omni.workers.rollout.vllm_rollout.vllm_omni_async_server import vLLMOmniHttpServer

    made: Any = object.__new__(vLLMOmniHttpServer)
    made._lora_loaded, made._asleep, made._awake, made.engine = None, {"weights"}, asyncio.Event(), Engine()
    made.model_config = SimpleNamespace(lora_rank=4, lora={})
    made.node_rank, made.rollout_mode, made._noted_version = 0, None, None
    made._mode = DiffusionMode()
    return made


async def update(server: Any) -> None:
    await server.collective_rpc("update_weights_from_ipc")


async def stamp(server: Any) -> None:
    await server.set_global_steps(3)


async def sleep(server: Any) -> None:
    await server._sleep_hybrid()


async def wake(server: Any) -> None:
    await server.wake_up()


async def test_many_requests_ask_once(server: Any) -> None:
    made = [await server._lora_request() for _ in range(5)]
    assert [request.lora_int_id for request in made] == [123] * 5
    assert server.engine.asked == 1


@pytest.mark.parametrize("change", [update, stamp, sleep, wake])
async def test_whatever_may_change_the_adapter_makes_it_ask_again(server: Any, change: Any) -> None:
    await server._lora_request()
    await change(server)
    await server._lora_request()
    assert server.engine.asked == 2


async def test_workers_are_told_the_version_of_weights_that_came_without_one(server: Any) -> None:
    await server.collective_rpc("update_weights_from_ipc", kwargs={"global_steps": 3})
    await server.set_global_steps(3)
    assert [method for method, _ in server.engine.calls] == ["update_weights_from_ipc"]
    await server.collective_rpc("update_weights_from_ipc")
    await server.set_global_steps(4)
    assert server.engine.calls[-1] == ("note_weights_version", (4,))
    assert await server.get_global_steps() == 4


async def test_without_adapters_nothing_is_asked(server: Any) -> None:
    server.model_config.lora_rank = 0
    assert await server._lora_request() is None
    assert server.engine.asked == 0
