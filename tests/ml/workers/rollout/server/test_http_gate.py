"""The gate of requests over HTTP."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import nullcontext
from typing import Any

import pytest

from verl_omni.workers.rollout.vllm_rollout.server.http_gate import HttpGate, NotServed

WHY = "this replica sleeps"


class Request:
    """Counts how often it starts and is dropped; each output waits for `go`."""

    def __init__(self, outputs: int = 1) -> None:
        self.started = self.dropped = 0
        self.go = asyncio.Semaphore(0)
        self._outputs = outputs

    async def __call__(self) -> AsyncIterator[int]:
        self.started += 1
        try:
            for number in range(self._outputs):
                await self.go.acquire()
                yield number
        except asyncio.CancelledError:
            self.dropped += 1
            raise


def gate(deadline: float = 30.0) -> HttpGate:
    return HttpGate(deadline, nullcontext)


async def collect(outputs: AsyncIterator[Any]) -> list[Any]:
    return [output async for output in outputs]


async def turn() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_request_is_held_while_the_gate_is_closed_for_any_reason() -> None:
    http_gate = gate()
    request = Request()
    await http_gate.close("sleep", WHY)
    await http_gate.close("pause", "it was told to")
    answer = asyncio.create_task(collect(http_gate.run(request)))
    await turn()
    http_gate.open("sleep")
    await turn()
    assert request.started == 0
    http_gate.open("pause")
    request.go.release()
    assert await answer == [0] and request.started == 1


async def test_a_request_that_has_not_reached_the_engine_is_held_too() -> None:
    http_gate = gate()
    request = Request()
    answer = asyncio.create_task(collect(http_gate.run(request)))
    await asyncio.sleep(0)  # its task is created, and has not run
    async with http_gate.closed(WHY):
        assert request.started == 0
    request.go.release()
    assert await answer == [0]


@pytest.mark.parametrize(("repeatable", "outputs"), [(True, 1), (False, 0)])
async def test_a_request_that_cannot_start_again_is_ended(repeatable: bool, outputs: int) -> None:
    http_gate = gate()
    request = Request(outputs=2)
    stream = http_gate.run(request, repeatable=repeatable)
    if outputs:
        request.go.release()
        assert await anext(stream) == 0
    answer = asyncio.create_task(collect(stream))
    await turn()
    await http_gate.close("sleep", WHY)
    with pytest.raises(NotServed, match=f"the request was ended, because {WHY}: send it again"):
        await answer
    assert request.started == request.dropped == 1


async def test_the_gate_does_not_wait_for_a_client_that_reads_slowly() -> None:
    http_gate = gate()
    request = Request(outputs=2)
    stream = http_gate.run(request)
    request.go.release()
    assert await anext(stream) == 0
    async with asyncio.timeout(5):
        await http_gate.close("sleep", WHY)
    assert request.dropped == 1


async def test_an_error_of_the_engine_is_raised_and_a_client_that_leaves_is_forgotten() -> None:
    http_gate = gate()

    async def failing() -> AsyncIterator[int]:
        raise OSError("no device")
        yield 0

    with pytest.raises(OSError, match="no device"):
        await collect(http_gate.run(failing))
    request = Request()
    answer = asyncio.create_task(collect(http_gate.run(request)))
    await turn()
    answer.cancel()
    await asyncio.wait({answer})
    assert request.dropped == 1 and not http_gate._in_flight
