"""Bounded fan-out: a coroutine per row, a limited number at a time, all cancelled after a failure."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from verl_omni.utils.root_cause import describe_error

Result = TypeVar("Result")


class SampleFailed(RuntimeError):
    """A row failed; the message names it, `__cause__` has the error."""


async def run_rows(
    size: int, limit: int, run: Callable[[int], Awaitable[Result]], describe: Callable[[int], str]
) -> list[Result]:
    """Results in the order of the rows.

    At most `limit` rows are in flight. On the first failure the others are cancelled and awaited.

    Raises:
        SampleFailed: a row raised; `describe` says which.
        ValueError: `limit` is not positive.
    """
    if limit <= 0:
        raise ValueError(f"the number of rows in flight must be positive: {limit}")
    waiting = iter(range(size))
    made: dict[int, Result] = {}

    async def runner() -> None:
        for row in waiting:
            try:
                made[row] = await run(row)
            except Exception as error:
                raise SampleFailed(f"{describe(row)} failed: {describe_error(error)}") from error

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(limit, size)):
                group.create_task(runner())
    except* SampleFailed as failures:
        raise failures.exceptions[0] from failures.exceptions[0].__cause__
    return [made[row] for row in range(size)]
