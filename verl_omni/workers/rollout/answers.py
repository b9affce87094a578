"""What is asked of a replica ends: with its answer, or with an error that names the replica."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from ray.exceptions import RayError

T = TypeVar("T")


class ReplicaFailed(RuntimeError):
    """A replica did not do what it was asked; the message names it, the cause is kept."""


async def answered(answer: Awaitable[T], *, replica: object, asked: str, deadline: float) -> T:
    """The answer of a replica.

    Args:
        replica: its rank or its address.
        asked: what it was asked, for the error.
        deadline: seconds; Ray itself would wait for ever for a process that is stopped.

    Raises:
        ReplicaFailed: it raised, is gone, or did not answer in time.
    """
    waiting = asyncio.timeout(deadline)
    try:
        async with waiting:
            return await answer
    except (TimeoutError, RayError) as error:  # a TimeoutError may be the replica's own
        said = f"no answer within {deadline:g} s" if waiting.expired() else f"{type(error).__name__}: {error}"
        raise ReplicaFailed(f"replica {replica}, {asked}: {said}") from error
