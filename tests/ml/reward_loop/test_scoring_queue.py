"""Queue of a scorer: batches, calls at a time, deadlines and failures."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from verl_omni.reward_loop import scoring_queue
from verl_omni.reward_loop.scoring_queue import ScoringQueue

SAMPLES = 512


def sample(number: int) -> dict[str, Any]:
    return {"data_source": "s", "solution_image": number, "ground_truth": f"t{number}", "extra_info": {}}


def queue(scorer: Any, *, batch_size: int = 32, deadline_seconds: float = 600.0, **more: Any) -> ScoringQueue:
    return ScoringQueue(scorer, {}, batch_size=batch_size, deadline_seconds=deadline_seconds, **more)


async def scores(on: ScoringQueue, number: int) -> list[Any]:
    return await asyncio.gather(*(on.score(sample(each)) for each in range(number)), return_exceptions=True)


@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_a_scorer_that_takes_lists_gets_all_samples_that_wait(kind: str) -> None:
    sizes: list[int] = []

    def judge(
        data_sources: Sequence[str], solution_images: Sequence[int], ground_truths: Sequence[str],
        extra_infos: Sequence[Any],
    ) -> list[str]:  # fmt: skip
        sizes.append(len(solution_images))
        assert list(ground_truths) == [f"t{image}" for image in solution_images]
        return [f"score {image}" for image in solution_images]

    async def late(
        data_sources: Sequence[str], solution_images: Sequence[int], ground_truths: Sequence[str],
        extra_infos: Sequence[Any],
    ) -> list[str]:  # fmt: skip
        await asyncio.sleep(0)
        return judge(data_sources, solution_images, ground_truths, extra_infos)

    found = await scores(queue(judge if kind == "plain" else late), SAMPLES)
    assert found == [f"score {number}" for number in range(SAMPLES)]
    assert sizes == [1, *[32] * 15, 31], "the first call does not wait for more, the others are full"


async def test_the_calls_at_a_time_are_limited_and_none_is_left_unused() -> None:
    running, seen = 0, []

    async def judge(data_source: str, solution_image: int, ground_truth: str, extra_info: Any) -> int:
        nonlocal running
        running += 1
        for _ in range(3):
            await asyncio.sleep(0)
        seen.append(running)
        running -= 1
        return solution_image

    assert await scores(queue(judge), SAMPLES) == list(range(SAMPLES))
    assert max(seen) == scoring_queue.COROUTINES
    assert seen[0] == scoring_queue.COROUTINES, "as many calls as may run are started at once"


async def test_the_deadline_of_a_sample_begins_with_its_call() -> None:
    """512 samples wait for calls that take turns; a deadline that covered the wait would begin for all at once."""
    begun = ended = 0
    most = 0

    def timeout(seconds: float) -> asyncio.Timeout:
        nonlocal begun, most
        begun += 1
        most = max(most, begun - ended)
        return asyncio.timeout(seconds)

    async def judge(data_source: str, solution_image: int, ground_truth: str, extra_info: Any) -> int:
        nonlocal ended
        await asyncio.sleep(0)
        ended += 1
        return solution_image

    assert await scores(queue(judge, timeout=timeout), SAMPLES) == list(range(SAMPLES))
    assert begun == SAMPLES and most <= scoring_queue.COROUTINES


async def test_a_call_that_does_not_end_fails_and_the_next_ones_run() -> None:
    async def judge(data_source: str, solution_image: int, ground_truth: str, extra_info: Any) -> int:
        if solution_image == 1:
            await asyncio.Event().wait()
        return solution_image

    found = await scores(queue(judge, deadline_seconds=0.05), 3)
    assert (found[0], found[2]) == (0, 2)
    assert isinstance(found[1], TimeoutError)
    assert str(found[1]) == "no score within 0.05 s (reward.deadline_seconds)"


async def test_the_scorers_own_timeout_keeps_its_text() -> None:
    async def judge(data_source: str, solution_image: int, ground_truth: str, extra_info: Any) -> int:
        raise TimeoutError("the scorer's server is slow")

    (found,) = await scores(queue(judge), 1)
    assert isinstance(found, TimeoutError) and str(found) == "the scorer's server is slow"


async def test_a_failing_call_fails_its_own_samples_only() -> None:
    def judge(data_sources: Any, solution_images: Sequence[int], ground_truths: Any, extra_infos: Any) -> list[int]:
        if 5 in solution_images:
            raise RuntimeError("no memory")
        return list(solution_images)

    found = await scores(queue(judge, batch_size=4), 10)
    failed = [number for number, each in enumerate(found) if isinstance(each, RuntimeError)]
    assert failed == [5, 6, 7, 8], "after 0 alone and 1 to 4"
    assert [each for each in found if isinstance(each, int)] == [0, 1, 2, 3, 4, 9]


@pytest.mark.parametrize("answer", [[1.0], 1.0])
async def test_a_scorer_of_lists_must_return_a_result_for_each_sample(answer: Any) -> None:
    def judge(data_sources: Any, solution_images: Any, ground_truths: Any, extra_infos: Any) -> Any:
        return answer if len(solution_images) == 2 else [0.0]

    found = await scores(queue(judge, batch_size=2), 3)
    assert [str(each) for each in found[1:]] == [str(found[1])] * 2
    assert str(found[1]).startswith("the scorer must return a list of 2 results, one a sample, not ")


async def test_samples_whose_callers_were_cancelled_are_not_scored() -> None:
    scored: list[int] = []
    go = asyncio.Event()

    async def judge(data_sources: Any, solution_images: Sequence[int], ground_truths: Any, extra_infos: Any) -> Any:
        scored.extend(solution_images)
        await go.wait()
        return solution_images

    on = queue(judge)
    first, second, third = (asyncio.ensure_future(on.score(sample(number))) for number in range(3))
    while not scored:
        await asyncio.sleep(0)
    second.cancel()
    go.set()
    assert (await first, await third) == (0, 2)
    assert scored == [0, 2]
