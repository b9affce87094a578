"""Requests of a batch are one call to the router and one to each replica."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tests.ml.workers.rollout.fake_router import CONFIG, ActorCalls, Call, Server, sample
from verl_omni.workers.rollout.vllm_rollout.driver import request_gathering
from verl_omni.workers.rollout.vllm_rollout.driver.rollout_client import DiffusionLLMServerClient


class Replicas:
    """verl's load balancer: each request gets the replica with the fewest; samples say where they come from."""

    def __init__(self, count: int, *fields: str) -> None:
        self.requests: list[dict[str, Any]] = []
        self.loads = dict.fromkeys(range(count), 0)
        self.servers = {number: Server(self._generated(number)) for number in self.loads}
        self.__ray_call__ = ActorCalls(self)
        self.require_acquire_fields = Call(lambda: list(fields))
        self.require_release_fields = Call(list)

    def acquire_server(self, **request: Any) -> tuple[str, Any]:
        self.requests.append(request)
        number = min(self.loads, key=lambda each: self.loads[each])
        self.loads[number] += 1
        return str(number), self.servers[number]

    def release_server(self, *, server_id: str) -> None:
        self.loads[int(server_id)] -= 1

    def _generated(self, number: int) -> Any:
        async def generate(**request: Any) -> Any:
            await asyncio.sleep(0)
            if request["prompt_ids"] == [13]:
                raise ValueError("no such prompt")
            output = sample(number)
            output.extra_fields["prompt"] = request["prompt_ids"]
            return output

        return generate


async def row(client: Any, number: int, turns: int = 1) -> list[Any]:
    with client.row():
        answers = [
            await client.generate(f"r{number}", prompt_ids=[number], sampling_params={"seed": number})
            for _ in range(turns)
        ]
    return [answer.extra_fields["prompt"] for answer in answers]


async def within_seconds(*rows: Any) -> list[Any]:
    async with asyncio.timeout(30):
        return await asyncio.gather(*rows, return_exceptions=True)


@pytest.mark.parametrize(("replicas", "calls"), [(1, [[128]]), (4, [[32]] * 4)])
async def test_a_batch_is_one_call_to_each_replica(replicas: int, calls: list[list[int]]) -> None:
    router = Replicas(replicas)
    client = DiffusionLLMServerClient(CONFIG, router)
    outputs = await within_seconds(*(row(client, 100 + number) for number in range(128)))
    assert outputs == [[[100 + number]] for number in range(128)]
    assert [server.calls for server in router.servers.values()] == calls
    assert router.__ray_call__.called == ["acquire_servers", *["release_servers"] * replicas]
    assert set(router.loads.values()) == {0}, "every request is released"


async def test_requests_wait_for_rows_that_still_prepare_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as rows whose chat template is rendered in a thread."""
    monkeypatch.setattr(request_gathering, "QUIET_SECONDS", 30)
    router = Replicas(1)
    client = DiffusionLLMServerClient(CONFIG, router)

    async def slow(number: int) -> None:
        with client.row():
            await asyncio.sleep(0.001 * number)
            await client.generate(f"r{number}", prompt_ids=[number], sampling_params={})

    await within_seconds(*(slow(number) for number in range(10)))
    assert router.servers[0].calls == [10]


async def test_a_row_that_asks_for_nothing_delays_the_others_for_a_moment_only() -> None:
    router = Replicas(1)
    client = DiffusionLLMServerClient(CONFIG, router)
    others_done = asyncio.Event()

    async def busy() -> None:
        with client.row():
            await others_done.wait()

    waiting = asyncio.ensure_future(busy())
    await asyncio.sleep(0)
    await within_seconds(*(row(client, number) for number in range(5)))
    others_done.set()
    await waiting
    assert router.servers[0].calls == [5]


async def test_each_turn_of_a_loop_is_gathered() -> None:
    router = Replicas(1)
    client = DiffusionLLMServerClient(CONFIG, router)
    await within_seconds(*(row(client, number, turns=3) for number in range(6)))
    assert router.servers[0].calls == [6, 6, 6]


async def test_a_request_that_fails_fails_no_other() -> None:
    client = DiffusionLLMServerClient(CONFIG, Replicas(1))
    results = await within_seconds(*(row(client, number) for number in (12, 13, 14)))
    assert (results[0], results[2]) == ([[12]], [[14]])
    assert str(results[1]) == "replica 0: ValueError: no such prompt"


async def test_a_router_gets_the_fields_that_it_declares() -> None:
    router = Replicas(1, "prompt_ids")
    await within_seconds(row(DiffusionLLMServerClient(CONFIG, router), 3))
    assert router.requests == [{"request_id": "r3", "prompt_ids": [3]}]


async def test_a_row_that_is_cancelled_is_not_sent() -> None:
    router = Replicas(1)
    client = DiffusionLLMServerClient(CONFIG, router)
    rows = [asyncio.ensure_future(row(client, number)) for number in range(3)]
    await asyncio.sleep(0)
    rows[1].cancel()
    await within_seconds(*rows)
    assert router.servers[0].calls == [2]


async def test_a_stream_that_ends_early_is_the_loss_of_its_replica() -> None:
    async def nothing(requests: Any) -> Any:
        return
        yield

    router = Replicas(1)
    router.servers[0].generate_batch = SimpleNamespace(remote=nothing)
    (error,) = await within_seconds(row(DiffusionLLMServerClient(CONFIG, router), 1))
    assert str(error) == "replica 0: its call ended without 1 outputs"
