"""Control of a running engine: every answer is checked, every wait has a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any


class EngineControlError(RuntimeError):
    """A worker or a stage of the engine refused or failed a control call."""


def check_worker_replies(method: str, answers: Iterable[Any]) -> list[Any]:
    """Flatten the answers of `collective_rpc` and raise the failures that vLLM-Omni returns as values.

    Its orchestrator turns a worker's exception into `{"supported": False, "error": …}`
    (vllm_omni/engine/stage_pool.py).

    Raises:
        EngineControlError: any worker failed; the message carries every error.
    """
    flat = [each for answer in answers for each in (answer if isinstance(answer, list) else [answer])]
    failures = [
        str(each.get("error") or each.get("reason") or each)
        for each in flat
        if isinstance(each, dict) and (each.get("error") or each.get("supported") is False)
    ]
    if failures:
        raise EngineControlError(f"{method} failed in {len(failures)} of {len(flat)} workers: {'; '.join(failures)}")
    return flat


def check_acknowledgements(action: str, acknowledgements: Iterable[Any], *, stages: int) -> None:
    """Raise unless every stage has acknowledged a sleep or wake with SUCCESS.

    Raises:
        EngineControlError: one did not, or said nothing.
    """
    answers = list(acknowledgements)
    refused = [
        f"{getattr(each, 'status', each)}: {getattr(each, 'error_msg', None)}"
        for each in answers
        if getattr(each, "status", None) != "SUCCESS"
    ]
    if refused:
        raise EngineControlError(f"{action} was refused: {'; '.join(refused)}")
    if len(answers) < stages:
        raise EngineControlError(f"{action} was acknowledged by {len(answers)} of {stages} stages")


async def wait_until(
    settled: Callable[[], bool], *, deadline: float, waiting_for: str, interval: float = 0.005
) -> None:
    """Poll `settled` until it is true.

    Raises:
        TimeoutError: it was still false after `deadline` seconds; the message names `waiting_for`.
    """
    try:
        async with asyncio.timeout(deadline):
            while not settled():
                await asyncio.sleep(interval)
    except TimeoutError as error:
        raise TimeoutError(f"{waiting_for} did not end within {deadline:g} s") from error


async def last_output(stream: AsyncIterator[Any]) -> Any:
    """The last element of an async iterator, or None."""
    final = None
    async for each in stream:
        final = each
    return final
