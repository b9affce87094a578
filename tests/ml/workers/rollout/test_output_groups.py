"""Groups of outputs: what a caller gets is what the engine made."""

import asyncio
from typing import Any

import torch

from verl_omni.workers.rollout.output_groups import in_groups
from verl_omni.workers.rollout.replica import DiffusionOutput


def output(number: int) -> DiffusionOutput:
    return DiffusionOutput(
        diffusion_output=torch.full((3, 8, 8), number, dtype=torch.uint8),
        log_probs=torch.full((4,), float(number)),
        stop_reason="completed",
        num_preempted=number,
        extra_fields={"global_steps": 3, "latents": torch.randn(5, 4), "negative_prompt_embeds": None, "note": "x"},
    )


class Unloadable(Exception):
    def __init__(self, one: str, other: str) -> None:
        super().__init__(f"{one} {other}")


async def calls_in_groups(calls: list[Any]) -> list[list[tuple[int, Any]]]:
    async with asyncio.timeout(30):
        return [group async for group in in_groups(calls)]


async def test_outputs_of_an_engine_s_batch_are_one_group_in_the_order_of_their_requests() -> None:
    async def call(number: int) -> int:
        await asyncio.sleep(0.0005 * (20 - number))
        return number

    groups = await calls_in_groups([call(number) for number in range(20)])
    assert groups == [[(number, number) for number in range(20)]]


async def test_outputs_do_not_wait_for_those_of_the_next_batch() -> None:
    first_sent = asyncio.Event()

    async def call(number: int) -> int:
        if number >= 2:
            await first_sent.wait()
        return number

    groups = []
    async with asyncio.timeout(30):
        async for group in in_groups([call(number) for number in range(4)]):
            groups.append([number for number, _ in group])
            first_sent.set()
    assert groups == [[0, 1], [2, 3]]


async def test_an_error_that_cannot_be_loaded_is_sent_as_text() -> None:
    async def fail() -> None:
        raise Unloadable("no", "room")

    ((number, error),) = (await calls_in_groups([fail()]))[0]
    assert number == 0 and type(error) is RuntimeError and str(error) == "Unloadable: no room"
