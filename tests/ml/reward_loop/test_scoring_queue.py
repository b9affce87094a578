"""Queue of a scorer: batches, calls at a time, deadlines and failures."""

import asyncio
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from verl_omni.reward_loop import scoring_queue
from verl_omni.reward_loop.scoring_queue import ScoringQueue

SAMPLES = 512


def sample(number: int) -> dict[str, Any]:
    return {"data_source": "s", "solution_image": number, "ground_truth": f"t{number}", "extra_info": {}}


def queue(scorer: Any, *, batch_size: int = 32, deadline_seconds: float = 600.0, **more: Any) -> ScoringQueue:
    return ScoringQueue(scorer, {}, batch_size=batch_size, deadline_seconds=deadline_seconds, **more)


async def scores(on: ScoringQueue, number: int) -> list[Any]:
    return await asyncio.gather(*(on.score(sample(row)) for row in range(number)), return_exceptions=True)


@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_a_scorer_that_takes_lists_gets_all_samples_that_wait(kind: str) -> None:
    sizes: list[int] = []

    def judge(solution_images: Sequence[int], ground_truths: Sequence[str]) -> list[str]:
        sizes.append(len(solution_images))
        assert list(ground_truths) == [f"t{image}" for image in solution_images]
        return [f"score {image}" for image in solution_images]

    async def late(solution_images: Sequence[int], ground_truths: Sequence[str]) -> list[str]:
        await asyncio.sleep(0)
        return judge(solution_images, ground_truths)

    scored = await scores(queue(judge if kind == "plain" else late), SAMPLES)
    assert scored == [f"score {number}" for number in range(SAMPLES)]
    assert sizes == [1, *[32] * 15, 31], "the first call does not wait for more, the others are full"


async def test_a_scorer_gets_the_arguments_that_it_takes() -> None:
    def of_image(solution_image: int) -> int:
        return solution_image

    async def of_truth(ground_truth: str, data_source: str) -> str:
        return data_source + ground_truth

    def of_lists(solution_images: Sequence[int], ground_truths: Sequence[str]) -> list[str]:
        return [f"{truth}:{image}" for image, truth in zip(solution_images, ground_truths, strict=True)]

    def of_all(**given: Any) -> list[str]:
        return sorted(given)

    assert await scores(queue(of_image), 2) == [0, 1]
    assert await scores(queue(of_truth), 2) == ["st0", "st1"]
    assert await scores(queue(of_lists), 2) == ["t0:0", "t1:1"]
    assert await scores(queue(of_all), 1) == [["data_source", "extra_info", "ground_truth", "solution_image"]]


@pytest.mark.parametrize(
    ("quick_seconds", "waiting_seconds", "alone"),
    [(600.0, 600.0, 10**6), (600.0, 0.01, 0), (-1.0, 600.0, scoring_queue.SLOW_CALLS)],
    ids=["quick", "waits", "slow"],
)
async def test_a_plain_function_runs_in_several_threads_if_a_call_waits_or_several_are_slow(
    quick_seconds: float, waiting_seconds: float, alone: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`alone`: calls before the others, which run in all threads."""
    monkeypatch.setattr(scoring_queue, "QUICK_SECONDS", quick_seconds)
    monkeypatch.setattr(scoring_queue, "WAITING_SECONDS", waiting_seconds)
    all_threads = threading.Barrier(scoring_queue.THREADS)
    running: list[int] = []
    begun = 0

    def judge(solution_image: int) -> int:
        nonlocal begun
        begun += 1
        running.append(solution_image)
        if begun <= alone:
            time.sleep(0.02)  # others would begin
            assert len(running) == 1
        else:
            all_threads.wait(60)
        running.remove(solution_image)
        return solution_image

    size = min(alone, scoring_queue.THREADS) + 2 * scoring_queue.THREADS
    assert await scores(queue(judge), size) == list(range(size))


async def test_the_deadline_of_a_sample_begins_with_its_call() -> None:
    """512 samples wait for calls that take turns; a deadline that covered the wait would begin for all at once."""
    begun = ended = 0
    most = 0

    def timeout(seconds: float) -> asyncio.Timeout:
        nonlocal begun, most
        begun += 1
        most = max(most, begun - ended)
        return asyncio.timeout(seconds)

    async def judge(solution_image: int) -> int:
        nonlocal ended
        await asyncio.sleep(0)
        ended += 1
        return solution_image

    assert await scores(queue(judge, timeout=timeout), SAMPLES) == list(range(SAMPLES))
    assert begun == SAMPLES
    assert most == scoring_queue.COROUTINES, "the calls at a time are limited, and none is left unused"


async def test_a_call_that_does_not_end_fails_and_the_next_ones_run() -> None:
    async def judge(solution_image: int) -> int:
        if solution_image == 1:
            await asyncio.Event().wait()
        return solution_image

    scored = await scores(queue(judge, deadline_seconds=0.05), 3)
    assert (scored[0], scored[2]) == (0, 2)
    assert isinstance(scored[1], TimeoutError)
    assert str(scored[1]) == "no score within 0.05 s (reward.deadline_seconds)"


async def test_a_function_that_returns_after_its_deadline_delays_the_next_calls_and_fails_none_of_them() -> None:
    """It keeps its thread until it returns, and the deadline of the next call begins after that."""
    running = 0
    go = threading.Event()
    most = 0

    def judge(solution_images: Sequence[int]) -> list[int]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if 0 in solution_images:
            assert go.wait(60)
        running -= 1
        return list(solution_images)

    limits: list[asyncio.Timeout] = []

    def timeout(seconds: float) -> asyncio.Timeout:
        """The first call times out at once."""
        limits.append(asyncio.timeout(seconds if limits else 0))
        return limits[-1]

    on = queue(judge, batch_size=1, timeout=timeout)
    first, *others = (asyncio.ensure_future(on.score(sample(number))) for number in range(4))
    with pytest.raises(TimeoutError, match="no score within 600 s"):
        await first
    assert len(limits) == 1, "the deadline of another call began while the thread was occupied"
    go.set()
    assert await asyncio.gather(*others) == [1, 2, 3]
    assert most == 1


async def test_samples_fail_while_calls_that_do_not_return_occupy_every_thread() -> None:
    go = threading.Event()

    def judge(solution_images: Sequence[int]) -> list[int]:
        if 0 in solution_images:
            assert go.wait(60)
        return list(solution_images)

    on = queue(judge, batch_size=1, deadline_seconds=0.05)
    try:
        scored = await scores(on, 3)
        assert [type(error) for error in scored] == [TimeoutError] * 3
        assert "no thread is free for the scorer: 1 of 1 calls at a time" in str(scored[1]) == str(scored[2])
        with pytest.raises(TimeoutError, match=r"more than 0\.1 s, twice reward\.deadline_seconds"):
            await on.score(sample(3))
    finally:
        go.set()
    while on._stuck:
        await asyncio.sleep(0)
    assert await on.score(sample(4)) == 4, "the function returned, so its thread is free again"


async def test_the_scorers_own_timeout_keeps_its_text() -> None:
    async def judge(solution_image: int) -> int:
        raise TimeoutError("the scorer's server is slow")

    (error,) = await scores(queue(judge), 1)
    assert isinstance(error, TimeoutError) and str(error) == "the scorer's server is slow"


@pytest.mark.parametrize("answer", [[1.0], 1.0])
async def test_a_scorer_of_lists_must_return_a_result_for_each_sample(answer: Any) -> None:
    def judge(solution_images: Any) -> Any:
        return answer if len(solution_images) == 2 else [0.0]

    scored = await scores(queue(judge, batch_size=2), 3)
    assert [str(error) for error in scored[1:]] == [str(scored[1])] * 2
    assert str(scored[1]).startswith("the scorer must return a list of 2 results, one a sample, not ")


@pytest.mark.parametrize("kind", [torch.tensor, np.array])
async def test_a_scorer_of_lists_may_return_an_array(kind: Any) -> None:
    def judge(solution_images: Any) -> Any:
        return kind([float(image) for image in solution_images])

    assert await scores(queue(judge), 3) == [0.0, 1.0, 2.0]


async def test_samples_whose_callers_were_cancelled_are_not_scored() -> None:
    scored: list[int] = []
    go = asyncio.Event()

    async def judge(solution_images: Sequence[int]) -> Any:
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


def judge_of_lists(calls: list[list[int]], error: type[Exception]) -> Any:
    """A reward model that cannot read the frames of the samples 5 and 40."""

    def judge(solution_images: Sequence[int]) -> list[int]:
        calls.append(list(solution_images))
        if {5, 40} & set(solution_images):
            raise error("cannot read a frame")
        return list(solution_images)

    return judge


async def test_a_sample_that_cannot_be_scored_fails_no_other_of_its_call() -> None:
    """Which samples are in a call depends on the time; which ones fail may not, or a resumed run is another one."""
    calls: list[list[int]] = []
    scored = await scores(queue(judge_of_lists(calls, ValueError)), 50)
    assert [score for score in scored if not isinstance(score, ValueError)] == [
        n for n in range(50) if n not in (5, 40)
    ]
    assert [len(call) for call in calls] == [1, 32, *[1] * 32, 17, *[1] * 17]


@pytest.mark.parametrize("error", [TimeoutError, ConnectionError])
async def test_a_server_that_is_gone_is_not_asked_for_each_sample(error: type[Exception]) -> None:
    calls: list[list[int]] = []
    scored = await scores(queue(judge_of_lists(calls, error)), 50)
    assert sum(isinstance(result, error) for result in scored) == 49 and len(calls) == 3


def ranks(calls: list[list[str]], fails: str | None = None) -> Any:
    """A scorer that takes groups: each sample's rank in its group. It fails for the group `fails`."""

    def rank(solution_images: Sequence[int], groups: Sequence[str]) -> list[int]:
        calls.append(list(groups))
        if fails in groups:
            raise OSError("unreadable")
        samples = list(zip(solution_images, groups, strict=True))
        return [sum(other_image < image for other_image, name in samples if name == group) for image, group in samples]

    return rank


async def grouped(on: ScoringQueue, groups: Sequence[str]) -> list[Any]:
    """Scores of samples 0, 1, ... of these groups."""
    requests = [on.score(sample(number), (group, groups.count(group))) for number, group in enumerate(groups)]
    return await asyncio.gather(*requests, return_exceptions=True)


async def test_a_scorer_that_takes_groups_gets_whole_groups_however_their_samples_arrive() -> None:
    calls: list[list[str]] = []
    groups = ["a", "b", "c", "a", "c", "b", "b", "c", "d"] * 3
    ranks_in_groups = await grouped(queue(ranks(calls), batch_size=12), groups)
    assert ranks_in_groups == [groups[:number].count(group) for number, group in enumerate(groups)]
    assert sorted(group for call in calls for group in set(call)) == ["a", "b", "c", "d"], "no group is divided"
    assert all(call.count(group) == groups.count(group) for call in calls for group in call)
    assert len(calls) < 4, "a call has several groups, if they fit into the batch"


async def test_a_group_that_is_larger_than_a_batch_is_scored_whole() -> None:
    calls: list[list[str]] = []
    assert await grouped(queue(ranks(calls), batch_size=2), ["a"] * 5) == [0, 1, 2, 3, 4]
    assert calls == [["a"] * 5]


async def test_a_group_that_cannot_be_scored_fails_no_other_of_its_call() -> None:
    calls: list[list[str]] = []
    scores = await grouped(queue(ranks(calls, fails="b")), ["x", "a", "a", "b", "b"])
    assert scores[:3] == [0, 0, 1] and all(isinstance(failure, OSError) for failure in scores[3:])
    assert calls[1:] == [["a", "a", "b", "b"], ["a", "a"], ["b", "b"]]


async def test_a_scorer_that_takes_groups_scores_no_sample_without_one() -> None:
    with pytest.raises(ValueError, match="a sample has no group, and the scorer has a parameter groups"):
        await queue(ranks([])).score(sample(0))
