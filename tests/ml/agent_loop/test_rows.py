"""Rows that run at the same time: what one raises ends all, and is named."""

import asyncio

import pytest

from verl_omni.agent_loop.rows import SampleFailed, run_rows


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("no image"), "ValueError: no image"),
        (SystemExit(3), "it raised SystemExit: 3"),
        (asyncio.CancelledError(), "it raised CancelledError"),
    ],
)
async def test_whatever_a_row_raises_is_the_failure_of_that_row(error: BaseException, message: str) -> None:
    cancelled: list[int] = []

    async def run(row: int) -> int:
        if row == 1:
            await asyncio.sleep(0)
            raise error
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(row)
            raise
        return row

    async with asyncio.timeout(30):
        with pytest.raises(SampleFailed, match=f"row 1 failed: {message}"):
            await run_rows(3, run, lambda row: f"row {row}")
    assert sorted(cancelled) == [0, 2]


async def test_rows_that_are_cancelled_are_cancelled() -> None:
    async def run(row: int) -> None:
        await asyncio.Event().wait()

    running = asyncio.ensure_future(run_rows(2, run, str))
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
