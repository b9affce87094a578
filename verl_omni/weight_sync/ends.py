"""The two ends of an update as the trainer sees them: its own sender, and its call to the workers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from verl_omni.weight_sync.errors import CalledOff, DeadlineExceeded, IncompleteUpdate, PeerFailed, PeerGone, from_text
from verl_omni.weight_sync.transfer import Stop


async def both_ends(
    sending: Callable[[Stop], int], receiving: Awaitable[Any] | None, deadline: float
) -> tuple[int, Any]:
    """Run the sender in a thread beside the call to the workers. Returns what both returned.

    Where both fail, what is raised is the cause: an error of the trainer's own, or else the worker's.

    Args:
        sending: sends until done, or until its argument is set.
        receiving: the workers' answers; None on a rank that does not call them.
        deadline: seconds that the workers may take to answer after the transfer.
    """
    with Stop() as stop:
        sender = asyncio.ensure_future(asyncio.to_thread(sending, stop))
        answer = None if receiving is None else asyncio.ensure_future(_awaited(receiving))
        try:
            if answer is not None:
                await asyncio.wait({sender, answer}, return_when=asyncio.FIRST_COMPLETED)
                if answer.done() and answer.exception() is not None:
                    stop.set()  # nobody takes the weights any more
            await asyncio.wait({sender})
            if answer is not None:
                await asyncio.wait({answer}, timeout=deadline)
        except asyncio.CancelledError:
            stop.set()
            await asyncio.wait({sender})
            raise
        return _outcome(sender, answer, deadline)


def _outcome(sender: asyncio.Future[int], answer: asyncio.Future[Any] | None, deadline: float) -> tuple[int, Any]:
    problem = sender.exception()
    if problem is not None and not isinstance(problem, (PeerFailed, PeerGone, DeadlineExceeded, CalledOff)):
        raise problem
    if answer is None:
        return sender.result(), None
    if not answer.done():
        answer.cancel()
        raise problem or DeadlineExceeded(f"the workers took the weights, and did not answer within {deadline:g} s")
    refusal = answer.exception()
    if refusal is not None:
        raise from_text(str(refusal)) from refusal
    return sender.result(), answer.result()


async def _awaited(receiving: Awaitable[Any]) -> Any:
    return await receiving


def confirmed(sent: int, answers: Any) -> dict[str, Any]:
    """The first worker's answer, once all say that they took all tensors and put them to use.

    Raises:
        IncompleteUpdate: one does not, or there is no answer: verl's own server drops them.
    """
    if not answers:
        raise IncompleteUpdate(f"{sent} tensors were sent, and no worker confirmed them")
    if short := [each for each in answers if not isinstance(each, dict) or each.get("tensors") != sent]:
        raise IncompleteUpdate(f"{sent} tensors were sent, workers report {short}")
    if idle := [each for each in answers if not each.get("bound")]:
        raise IncompleteUpdate(f"weights that were taken and put to no use: {idle}")
    return answers[0]
