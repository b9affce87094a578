"""Weights of a language model change between requests only, and half an update answers none."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from verl_omni.weight_sync.errors import PartialWeights, WeightSyncError
from verl_omni.workers.rollout.vllm_rollout.language_model.weights_gate import WeightsGate
from verl_omni.workers.rollout.vllm_rollout.server.engine_replies import EngineControlError

FULL, ADAPTER = [[{"lora": False}]], [[{"lora": True}]]
BROKEN: list[Any] = [{"supported": False, "error": "[PartialWeights] the update broke off"}]


async def turn() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_an_update_is_refused_while_a_request_is_answered() -> None:
    gate = WeightsGate()
    async with gate.request(), gate.request():
        with pytest.raises(WeightSyncError, match="2 requests are being answered"), gate.update():
            raise AssertionError("it was let in")
    with gate.update(), pytest.raises(WeightSyncError, match="another update runs"), gate.update():
        raise AssertionError("it was let in")
    with gate.update():
        pass


async def test_a_request_waits_until_the_update_is_over() -> None:
    gate, began = WeightsGate(), []

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


async def test_an_update_that_fails_lets_requests_in_again() -> None:
    gate = WeightsGate()
    with pytest.raises(ZeroDivisionError), gate.update():
        raise ZeroDivisionError
    async with gate.request():
        pass


async def test_half_an_update_answers_nothing_until_all_weights_have_come() -> None:
    gate = WeightsGate()
    with pytest.raises(EngineControlError):
        gate.check_update_replies("update", BROKEN)
    for answers in ([], [ADAPTER]):
        for each in answers:
            assert gate.check_update_replies("update", each) == [{"lora": True}]
        with pytest.raises(PartialWeights, match="the update broke off"):
            async with gate.request():
                raise AssertionError("it was let in")
    gate.check_update_replies("update", FULL)
    async with gate.request():
        pass


async def test_an_update_that_changed_nothing_tears_nothing() -> None:
    gate = WeightsGate()
    with pytest.raises(EngineControlError, match="arrived twice"):
        gate.check_update_replies("update", [{"supported": False, "error": "[IncompleteUpdate] a arrived twice"}])
    async with gate.request():
        pass
