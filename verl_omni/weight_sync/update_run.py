"""A weight update from the trainer's side: the sender in a thread, and the call to the engine's workers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from verl_omni.weight_sync.errors import (
    DeadlineExceeded,
    IncompleteUpdate,
    PeerDisconnected,
    PeerFailed,
    TransferCancelled,
    parse_error,
)
from verl_omni.weight_sync.transfer import StopSignal


async def run_update(
    send: Callable[[StopSignal], int], receiving: Awaitable[Any] | None, deadline: float
) -> tuple[int, Any]:
    """Run the sender in a thread while the workers receive. Returns the number of sent tensors and the replies.

    If both fail, the cause is raised: an error of the trainer itself, otherwise the error of the worker.

    Args:
        send: sends until done, or until its argument is set.
        receiving: the workers' replies; None on a rank that does not call the workers.
        deadline: seconds for the workers to reply after the transfer.
    """
    with StopSignal() as stop:
        sender = asyncio.ensure_future(asyncio.to_thread(send, stop))
        replies = None if receiving is None else asyncio.ensure_future(_await(receiving))
        try:
            if replies is not None:
                await asyncio.wait({sender, replies}, return_when=asyncio.FIRST_COMPLETED)
                if replies.done() and replies.exception() is not None:
                    stop.set()  # no worker receives the weights any more
            await asyncio.wait({sender})
            if replies is not None:
                await asyncio.wait({replies}, timeout=deadline)
        except asyncio.CancelledError:
            stop.set()
            await asyncio.wait({sender})
            raise
        return _result(sender, replies, deadline)


def _result(sender: asyncio.Future[int], replies: asyncio.Future[Any] | None, deadline: float) -> tuple[int, Any]:
    error = sender.exception()
    if error is not None and not isinstance(error, (PeerFailed, PeerDisconnected, DeadlineExceeded, TransferCancelled)):
        raise error
    if replies is None:
        return sender.result(), None
    if not replies.done():
        replies.cancel()
        raise error or DeadlineExceeded(f"the workers received the weights, but did not reply within {deadline:g} s")
    failure = replies.exception()
    if failure is not None:
        raise parse_error(str(failure)) from failure
    return sender.result(), replies.result()


async def _await(receiving: Awaitable[Any]) -> Any:
    return await receiving


def check_confirmations(sent: int, replies: Any) -> dict[str, Any]:
    """Check that every worker received and applied all tensors. Returns the first worker's reply.

    Raises:
        IncompleteUpdate: a worker did not, or there are no replies (verl's own server discards them).
    """
    if not replies:
        raise IncompleteUpdate(f"{sent} tensors were sent, but no worker confirmed them")
    if short := [each for each in replies if not isinstance(each, dict) or each.get("tensors") != sent]:
        raise IncompleteUpdate(f"{sent} tensors were sent, but workers report {short}")
    if unused := [each for each in replies if not each.get("bound")]:
        raise IncompleteUpdate(f"workers received the weights, but applied them to no module: {unused}")
    return replies[0]
