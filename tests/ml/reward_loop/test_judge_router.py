"""The router of a judge's replicas, in front of stand-ins."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
import torch

from tests.ml.reward_loop.stub_server import CUT, Serve, start, stop
from verl_omni.reward_loop import rewards
from verl_omni.reward_loop.judge_client import JudgeError
from verl_omni.reward_loop.judge_router import CUT_ANSWERS, WAITING, JudgeRouter

ASKED = {"model": "judge", "messages": []}


@asynccontextmanager
async def slow_replica() -> AsyncIterator[tuple[str, asyncio.Semaphore, asyncio.Event]]:
    """A replica's address, what each request that arrives releases, and the event that it waits for, or its end."""
    arrived = asyncio.Semaphore(0)
    release = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        arrived.release()
        given_up = asyncio.ensure_future(reader.read())
        released = asyncio.ensure_future(release.wait())
        _, left = await asyncio.wait({given_up, released}, return_when=asyncio.FIRST_COMPLETED)
        for task in left:
            task.cancel()
        if release.is_set():
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield "{}:{}".format(*server.sockets[0].getsockname()), arrived, release


async def routed(*replicas: str) -> tuple[JudgeRouter, str]:
    router = JudgeRouter(replicas, "the judge tiny-vl", 60.0)
    return router, await router.start("127.0.0.1")


async def post(address: str) -> httpx2.Response:
    async with httpx2.AsyncClient() as client:
        return await client.post(f"http://{address}/v1/chat/completions", json=ASKED)


async def test_requests_are_spread_and_answers_are_passed_on_as_they_are(serve: Serve) -> None:
    servers = [serve(*[(200, f'{{"replica": {number}}}')] * 8) for number in range(2)]
    router, address = await routed(*(server.address for server in servers))
    answers = await asyncio.gather(*(post(address) for _ in range(8)))
    counted = Counter(answer.json()["replica"] for answer in answers)
    assert sum(counted.values()) == 8 and set(counted) == {0, 1}
    assert servers[0].received[0] == ASKED and servers[0].paths[0] == "/v1/chat/completions"
    refused = serve((400, '{"error": "no such model"}'))
    await router.stop()
    router, address = await routed(refused.address)
    answer = await post(address)
    assert (answer.status_code, answer.json()) == (400, {"error": "no such model"})
    await router.stop()


async def test_a_replica_that_is_gone_is_left_out_and_without_any_the_error_names_each(serve: Serve) -> None:
    gone, thread = start()
    left = serve((200, "{}"), (200, "{}"))
    stop(gone, thread)
    router, address = await routed(gone.address, left.address)
    assert [(await post(address)).status_code for _ in range(2)] == [200, 200]
    await router.stop()
    router, address = await routed(gone.address)
    answer = await post(address)
    message = answer.json()["error"]["message"]
    assert answer.status_code == 503 and f"the judge tiny-vl has no replica left: replica {gone.address}: " in message
    with pytest.raises(JudgeError, match=r"status 503.*the judge tiny-vl has no replica left"):
        await ask_judge(address)
    await router.stop()


async def test_a_replica_that_ends_a_connection_in_an_answer_is_asked_again_and_stays(serve: Serve) -> None:
    replica = serve((200, "half of it", CUT), (200, "{}"))
    router, address = await routed(replica.address)
    assert (await post(address)).status_code == 200
    assert len(replica.received) == 2 and await router.failed() == {}
    replica.answers += [(200, "half of it", CUT)] * CUT_ANSWERS
    answer = await post(address)
    message = answer.json()["error"]["message"]
    assert answer.status_code == 502 and "the judge tiny-vl ended 3 connections before the answer: replica" in message
    replica.answers.append((200, "{}"))
    assert (await post(address)).status_code == 200, "it serves other requests"
    await router.stop()


def ask_judge(address: str) -> Awaitable[Any]:
    """The score of a sample from a scorer that makes one attempt."""
    return rewards.get_scorer("genrm_ocr")(
        "test",
        torch.zeros(3, 4, 4, dtype=torch.uint8),
        "OPEN",
        {"prompt": "a sign"},
        reward_router_address=address,
        model_name="tiny-vl",
        attempts=1,
    )


async def test_without_a_replica_a_scorer_asks_again_until_another_one_comes(serve: Serve) -> None:
    router = JudgeRouter([], "the judge tiny-vl", 60.0, wait=0.05)
    address = await router.start("127.0.0.1")
    answer = await post(address)
    assert answer.status_code == 503 and WAITING in answer.headers
    asking = asyncio.ensure_future(ask_judge(address))
    await asyncio.sleep(0.2)  # more than one wait of the router, and more than one attempt
    assert not asking.done()
    completion = json.dumps({"choices": [{"message": {"content": "open"}}]})
    replica = serve((200, completion))
    await router.add(replica.address)
    assert (await asyncio.wait_for(asking, 10))["score"] == 1.0 and replica.received[0]["model"] == "tiny-vl"
    await router.stop()


async def test_a_question_that_waits_goes_to_a_replica_as_soon_as_it_is_added(serve: Serve) -> None:
    gone, thread = start()
    stop(gone, thread)
    router = JudgeRouter([gone.address], "the judge tiny-vl", 60.0, wait=60.0)
    address = await router.start("127.0.0.1")
    asking = asyncio.ensure_future(post(address))
    while not await router.failed():  # then the question has lost its only replica
        await asyncio.sleep(0.01)
    await router.add(serve((200, "{}")).address)
    assert (await asyncio.wait_for(asking, 10)).status_code == 200
    await router.stop()


async def test_a_replica_that_is_removed_gets_no_questions_and_may_come_back(serve: Serve) -> None:
    first, second = (serve(*[(200, f'{{"replica": {number}}}')] * 4) for number in range(2))
    router, address = await routed(first.address, second.address)
    await router.remove(first.address, "its node is being removed")
    await router.remove("other:1", "not known")
    assert {(await post(address)).json()["replica"] for _ in range(3)} == {1}
    assert await router.failed() == {first.address: "its node is being removed"}
    assert await router.requests(first.address) == await router.requests(second.address) == 0
    await router.add(first.address)
    await router.remove(second.address, "it is gone")
    assert (await post(address)).json()["replica"] == 0
    assert await router.failed() == {second.address: "it is gone"}
    await router.stop()


async def test_a_removed_replica_counts_the_questions_that_it_has(serve: Serve) -> None:
    async with slow_replica() as (replica, arrived, release):
        router, address = await routed(replica)
        asking = asyncio.ensure_future(post(address))
        await asyncio.wait_for(arrived.acquire(), 10)
        await router.remove(replica, "its node is being removed")
        assert await router.requests(replica) == 1
        release.set()
        assert (await asyncio.wait_for(asking, 10)).status_code == 200
        assert await router.requests(replica) == 0
    await router.stop()


async def test_the_peak_counts_requests_at_a_replica_and_those_that_wait_for_one(serve: Serve) -> None:
    async with slow_replica() as (replica, arrived, release):
        router = JudgeRouter([replica], "the judge tiny-vl", 60.0, wait=60.0)
        address = await router.start("127.0.0.1")
        asking = [asyncio.ensure_future(post(address)) for _ in range(3)]
        for _ in asking:
            await asyncio.wait_for(arrived.acquire(), 10)
        release.set()
        await asyncio.gather(*asking)
        assert (await router.peak(), await router.peak()) == (3, 0), "also if all are answered by then"
        await router.remove(replica, "its node is being removed")
        waits = asyncio.ensure_future(post(address))
        async with asyncio.timeout(10):
            while not await router.peak():
                await asyncio.sleep(0.01)
        assert await router.peak() == 1, "it is still there"
        await router.add(serve((500, "{}")).address)
        assert (await waits).status_code == 500
        assert (await router.peak(), await router.peak()) == (1, 0), "a refusal is an answer too"
    await router.stop()


async def given_up(router: JudgeRouter, address: str, replica: str, arrived: asyncio.Semaphore) -> None:
    """A client gives up a question that has arrived at a replica, and the router has noticed that."""
    asking = asyncio.ensure_future(post(address))
    await asyncio.wait_for(arrived.acquire(), 10)
    asking.cancel()
    async with asyncio.timeout(10):
        while await router.requests(replica):
            await asyncio.sleep(0.01)


async def test_questions_that_were_given_up_are_not_counted() -> None:
    async with slow_replica() as (replica, arrived, _):
        router, address = await routed(replica)
        for _ in range(3):
            await given_up(router, address, replica, arrived)
        assert (await router.peak(), await router.peak()) == (1, 0), "autoscaling would add replicas for the others"
        await router.stop()


async def test_a_replica_that_hangs_is_asked_less_and_given_up_in_the_end(serve: Serve) -> None:
    now = 0.0
    server = serve(*[(200, "{}")] * 8)
    async with slow_replica() as (hangs, arrived, _):
        router = JudgeRouter([hangs, server.address], "the judge tiny-vl", 60.0, clock=lambda: now)
        address = await router.start("127.0.0.1")
        await given_up(router, address, hangs, arrived)
        assert [(await post(address)).status_code for _ in range(3)] == [200] * 3
        now = 1000.0  # no request, as during the update of the trainer
        assert await router.failed() == {}
        await router.remove(server.address, "its node is being removed")
        asking = asyncio.ensure_future(post(address))
        await asyncio.wait_for(arrived.acquire(), 10)
        await router.add(server.address)
        now += 61.0
        assert await router.failed() == {hangs: "it has requests, and has answered none for 61 s"}
        assert {(await post(address)).status_code for _ in range(4)} == {200}
        asking.cancel()
        await router.stop()
