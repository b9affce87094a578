"""Rows of a batch, run at the same time: the first failure ends them all, and its error names the row."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from verl_omni.utils.root_cause import describe_error, is_lost_process

Result = TypeVar("Result")


class SampleFailed(RuntimeError):
    """A row failed; the message names it, `__cause__` has the error."""


class SampleLost(SampleFailed):
    """A row failed because a process that it needed has ended. A separate class, because Ray drops `__cause__`."""


async def run_rows(size: int, run: Callable[[int], Awaitable[Result]], describe: Callable[[int], str]) -> list[Result]:
    """Results in the order of the rows.

    On the first failure the others are cancelled and awaited. `SystemExit`, and a cancellation that `run` raises
    itself, are failures too. `run` limits what is in flight.

    Raises:
        SampleFailed: a row raised; `describe` says which.
    """

    async def runner(row: int) -> Result:
        try:
            return await run(row)
        except Exception as error:
            kind = SampleLost if is_lost_process(error) else SampleFailed
            raise kind(f"{describe(row)} failed: {describe_error(error)}") from error
        except (asyncio.CancelledError, SystemExit) as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and (task is None or task.cancelling()):
                raise
            # From a user's loop. A task group would treat the task as cancelled, and SystemExit would end the actor.
            raise SampleFailed(f"{describe(row)} failed: it raised {describe_error(error)}") from error

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(runner(row)) for row in range(size)]
    except* SampleFailed as failures:
        raise failures.exceptions[0] from failures.exceptions[0].__cause__
    return [task.result() for task in tasks]


def short_prompt(messages: Any) -> str:
    """The text of a prompt, at most 80 characters."""
    listed = isinstance(messages, Sequence) and all(isinstance(message, Mapping) for message in messages)
    text = repr(" ".join(_text(message.get("content")) for message in messages) if listed else messages)
    return text if len(text) <= 80 else f"{text[:77]}…"


def _text(content: Any) -> str:
    """The text of a message, with `<image>` for its images."""
    if isinstance(content, str) or not isinstance(content, Sequence):
        return str(content)
    return "".join(part["text"] if "text" in part else f"<{part.get('type')}>" for part in content)
