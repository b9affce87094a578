"""The loaded adapter is cached, because `list_loras` waits for the running forward pass."""

import asyncio
from typing import Any

import pytest

from tests.ml.workers.rollout import fake_engine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]  # the server's module takes half a minute to import


class LoraEngine(fake_engine.Engine):
    """Counts the calls of `list_loras`."""

    def __init__(self) -> None:
        super().__init__()
        self.list_calls = 0
        self.calls: list[tuple[str, Any]] = []

    async def list_loras(self) -> list[int]:
        self.list_calls += 1
        await asyncio.sleep(0)
        return [123]

    async def collective_rpc(self, method: str, args: tuple[Any, ...] = (), **call: Any) -> list[Any]:
        self.calls.append((method, args))
        return [{"tensors": 2, "bytes": 64, "lora": True}]


@pytest.fixture
def server() -> Any:
    rollout_server = fake_engine.server_with(LoraEngine())
    rollout_server.model_config.lora_rank = 4
    rollout_server._asleep = {"weights"}
    return rollout_server


async def update(server: Any) -> None:
    await server.collective_rpc("update_weights_from_ipc")


async def stamp(server: Any) -> None:
    await server.set_global_steps(3)


async def sleep(server: Any) -> None:
    await server._sleep_hybrid()


async def wake(server: Any) -> None:
    await server.wake_up()


async def test_requests_of_a_batch_list_adapters_once(server: Any) -> None:
    """After each update all of them ask at the same time."""
    requests = await asyncio.gather(*(server._lora_request() for _ in range(5)))
    assert [request.lora_int_id for request in requests] == [123] * 5
    assert server.engine.list_calls == 1


@pytest.mark.parametrize("change", [update, stamp, sleep, wake])
async def test_every_change_of_the_adapter_invalidates_the_cache(server: Any, change: Any) -> None:
    await server._lora_request()
    await change(server)
    await server._lora_request()
    assert server.engine.list_calls == 2


async def test_workers_get_the_version_if_the_update_had_none(server: Any) -> None:
    await server.collective_rpc("update_weights_from_ipc", kwargs={"global_steps": 3})
    await server.set_global_steps(3)
    assert server.engine.calls == [("update_weights_from_ipc", ()), ("commit_adapter", (3,))]
    await server.collective_rpc("update_weights_from_ipc")
    await server.set_global_steps(4)
    assert server.engine.calls[-1] == ("note_weights_version", (4,))
    assert await server.get_global_steps() == 4


async def test_without_lora_adapters_are_not_listed(server: Any) -> None:
    server.model_config.lora_rank = 0
    assert await server._lora_request() is None
    assert server.engine.list_calls == 0
