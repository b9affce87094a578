"""Checks of the engine's replies to control calls, and waits with deadlines."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any


class EngineControlError(RuntimeError):
    """A worker or a stage of the engine refused a control call, or failed to execute it."""


def check_worker_replies(method: str, replies: Iterable[Any]) -> list[Any]:
    """Flatten the replies of `collective_rpc` and raise the failures that vLLM-Omni returns as values.

    Its orchestrator turns a worker's exception into `{"supported": False, "error": …}`
    (vllm_omni/engine/stage_pool.py).

    Raises:
        EngineControlError: any worker failed; the message carries every error.
    """
    flat = [item for reply in replies for item in (reply if isinstance(reply, list) else [reply])]
    failures = [
        str(item.get("error") or item.get("reason") or item)
        for item in flat
        if isinstance(item, dict) and (item.get("error") or item.get("supported") is False)
    ]
    if failures:
        raise EngineControlError(f"{method} failed in {len(failures)} of {len(flat)} workers: {'; '.join(failures)}")
    return flat


def check_acknowledgements(action: str, acknowledgements: Iterable[Any], *, stages: int) -> None:
    """Check that every stage has acknowledged a sleep or wake with SUCCESS.

    Raises:
        EngineControlError: a stage refused, or sent no acknowledgement.
    """
    received = list(acknowledgements)
    refused = [
        f"{getattr(acknowledgement, 'status', acknowledgement)}: {getattr(acknowledgement, 'error_msg', None)}"
        for acknowledgement in received
        if getattr(acknowledgement, "status", None) != "SUCCESS"
    ]
    if refused:
        raise EngineControlError(f"{action} was refused: {'; '.join(refused)}")
    if len(received) < stages:
        raise EngineControlError(f"{action} was acknowledged by {len(received)} of {stages} stages")


async def wait_until(
    condition: Callable[[], bool], *, deadline: float, waiting_for: str, interval: float = 0.005
) -> None:
    """Poll `condition` until it is true.

    Raises:
        TimeoutError: it is still false after `deadline` seconds; the message names `waiting_for`.
    """
    try:
        async with asyncio.timeout(deadline):
            while not condition():
                await asyncio.sleep(interval)
    except TimeoutError as error:
        raise TimeoutError(f"timeout after {deadline:g} s while {waiting_for}") from error


async def last_output(stream: AsyncIterator[Any]) -> Any:
    """The last element of an async iterator, or None."""
    final = None
    async for output in stream:
        final = output
    return final
