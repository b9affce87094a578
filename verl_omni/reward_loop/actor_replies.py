"""Replies of Ray actors that may take any time, as long as the actor's process is alive."""

import asyncio
from typing import Any


class Unresponsive(Exception):
    """An actor's process does not respond; the text is the end of a sentence about it."""


async def reply_of(actor: Any, reference: Any, deadline: float) -> Any:
    """The reply of a call, which is cancelled with its caller.

    Args:
        actor: handle of the actor, which may have a long queue.
        reference: the call.
        deadline: seconds after which the actor is asked whether it is alive, and within which it must answer that.

    Raises:
        Unresponsive: it did not answer.
        Exception: what the call raised.
    """
    reply = asyncio.ensure_future(reference)
    try:
        while not (await asyncio.wait({reply}, timeout=deadline))[0]:
            try:
                async with asyncio.timeout(deadline):
                    await actor.__ray_ready__.remote()
            except TimeoutError as error:
                raise Unresponsive(f"did not respond within {deadline:g} s (reward.deadline_seconds)") from error
        return reply.result()
    finally:
        reply.cancel()
