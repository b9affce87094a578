"""Weights of a language model change only between requests, and partly written weights serve none."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from verl_omni.weight_sync.errors import PartialWeights, WeightSyncError
from verl_omni.workers.rollout.vllm_rollout.language_model.weights_gate import WeightsGate
from verl_omni.workers.rollout.vllm_rollout.server.engine_replies import EngineControlError

FULL = [[{"lora": False}]]
ADAPTER = [[{"lora": True}]]
BROKEN: list[Any] = [{"supported": False, "error": "[PartialWeights] the update failed"}]


async def turn() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_an_update_is_refused_while_requests_are_in_flight() -> None:
    gate = WeightsGate()
    async with gate.request(), gate.request():
        with pytest.raises(WeightSyncError, match="2 requests are in flight"), gate.update():
            raise AssertionError("entered")
    with gate.update(), pytest.raises(WeightSyncError, match="another weight update is running"), gate.update():
        raise AssertionError("entered")
    with gate.update():
        pass


async def test_a_request_waits_for_the_update() -> None:
    gate = WeightsGate()
    began = []

    async def request(name: str) -> None:
        async with gate.request():
            began.append(name)
            await turn()

    with gate.update():
        waiting = [asyncio.create_task(request(name)) for name in "ab"]
        await turn()
        assert began == []
    await asyncio.gather(*waiting)
    assert began == ["a", "b"]


async def test_requests_resume_after_a_failed_update() -> None:
    gate = WeightsGate()
    with pytest.raises(ZeroDivisionError), gate.update():
        raise ZeroDivisionError
    async with gate.request():
        pass


async def test_partly_written_weights_serve_nothing_until_a_full_update() -> None:
    gate = WeightsGate()
    with pytest.raises(EngineControlError):
        gate.check_update_replies("update", BROKEN)
    for answers in ([], [ADAPTER]):
        for each in answers:
            assert gate.check_update_replies("update", each) == [{"lora": True}]
        with pytest.raises(PartialWeights, match="the update failed"):
            async with gate.request():
                raise AssertionError("entered")
    gate.check_update_replies("update", FULL)
    async with gate.request():
        pass


async def test_an_update_that_wrote_nothing_does_not_block_requests() -> None:
    gate = WeightsGate()
    with pytest.raises(EngineControlError, match="arrived twice"):
        gate.check_update_replies("update", [{"supported": False, "error": "[IncompleteUpdate] a arrived twice"}])
    async with gate.request():
        pass
