"""Fan-out: a coroutine per row, all cancelled after a failure."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from verl_omni.utils.root_cause import describe_error

Result = TypeVar("Result")


class SampleFailed(RuntimeError):
    """A row failed; the message names it, `__cause__` has the error."""


async def run_rows(size: int, run: Callable[[int], Awaitable[Result]], describe: Callable[[int], str]) -> list[Result]:
    """Results in the order of the rows.

    On the first failure the others are cancelled and awaited. `run` limits what is in flight.

    Raises:
        SampleFailed: a row raised; `describe` says which.
    """

    async def runner(row: int) -> Result:
        try:
            return await run(row)
        except Exception as error:
            raise SampleFailed(f"{describe(row)} failed: {describe_error(error)}") from error

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(runner(row)) for row in range(size)]
    except* SampleFailed as failures:
        raise failures.exceptions[0] from failures.exceptions[0].__cause__
    return [task.result() for task in tasks]
