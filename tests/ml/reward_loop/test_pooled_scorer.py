"""The connection of a reward worker to the processes of a scorer's pool, with stand-ins of the processes."""

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError

from verl_omni.reward_loop.reward_manager import MultiVisualRewardManager
from verl_omni.reward_loop.scorer_pools import PooledScorer, PooledScorerError, PoolLost
from verl_omni.reward_loop.scorer_pools.scorer_process import ENDED, ERROR
from verl_omni.reward_loop.scorer_results import FAILURE, ScorerFailed

SCORE = {"reward_score": 0.5, "reward_extra_info": {"size": 3}}


class Process:
    """Replies what it is told, once `released` is set; without `alive`, nothing."""

    def __init__(self, reply: Any = SCORE, *, alive: bool = True, released: bool = True) -> None:
        self.reply = reply
        self.alive = alive
        self.released = asyncio.Event()
        if released:
            self.released.set()
        self.groups: list[Any] = []
        self.score = SimpleNamespace(remote=self._score)
        self.__ray_ready__ = SimpleNamespace(remote=self._ready)

    async def _score(self, sample: Any, group: Any) -> Any:
        self.groups.append(group)
        await self.released.wait()
        if isinstance(self.reply, Exception):
            raise self.reply
        return self.reply

    async def _ready(self) -> None:
        if not self.alive:
            await asyncio.Event().wait()
        self.released.set()


async def test_samples_go_to_the_process_with_the_fewest() -> None:
    processes = [Process(released=False), Process()]
    scorer = PooledScorer(processes, 60)
    stuck = asyncio.ensure_future(scorer.score({}))
    await asyncio.sleep(0)
    for _ in range(4):
        assert await scorer.score({}) == SCORE
    assert [len(process.groups) for process in processes] == [1, 4]
    processes[0].released.set()
    assert await stuck == SCORE


async def test_all_samples_of_a_group_go_to_one_process_and_groups_are_spread() -> None:
    processes = [Process(released=False) for _ in range(2)]
    scorer = PooledScorer(processes, 60)
    groups = [(f"prompt {number % 4}", 3) for number in range(12)]
    scores = [asyncio.ensure_future(scorer.score({}, group)) for group in groups]
    await asyncio.sleep(0.01)
    seen = [Counter(process.groups) for process in processes]
    assert [sorted(counts.values()) for counts in seen] == [[3, 3], [3, 3]]
    for process in processes:
        process.released.set()
    assert await asyncio.gather(*scores) == [SCORE] * 12
    assert scorer._groups == {}, "a later batch may have the same names"


async def test_a_process_that_takes_long_is_waited_for_and_one_that_does_not_respond_is_not() -> None:
    assert await PooledScorer([Process(released=False)], 0.01).score({}) == SCORE
    with pytest.raises(TimeoutError, match=r"did not respond within 0.01 s \(reward.deadline_seconds\)"):
        await PooledScorer([Process(released=False, alive=False)], 0.01).score({})


@pytest.mark.parametrize("required", [True, False])
@pytest.mark.parametrize(
    ("reply", "error", "message"),
    [
        ({ERROR: "OSError: no model"}, PooledScorerError, "OSError: no model"),
        ({ENDED: "the process ended 3 times"}, PoolLost, "the process ended 3 times"),
        (ActorDiedError(), PoolLost, "its process is gone: "),
    ],
)
async def test_only_a_required_scorer_that_ended_its_process_too_often_ends_the_run(
    settings: Any, sample: Any, reply: Any, error: type[Exception], message: str, required: bool
) -> None:
    scorer = PooledScorer([Process(reply)], 60)
    with pytest.raises(error, match=f"^{message}"):
        await scorer.score({})
    parts = {"mine": {"name": "brightness", "required": required, "pool": {}}, "jpeg": {}}
    manager = MultiVisualRewardManager(settings(reward_functions=parts), None, None)
    manager._pooled["mine"] = scorer
    text = f"reward 'mine' failed: {message}"
    if required and error is PoolLost:
        with pytest.raises(ScorerFailed, match=text):
            await manager.run_single(sample())
        return
    failure = (await manager.run_single(sample()))[FAILURE]
    assert failure.text.startswith(text) and failure.required is required


async def test_the_score_and_the_fields_of_a_pool_are_those_of_the_scorer(settings: Any, sample: Any) -> None:
    parts = {"mine": {"name": "brightness", "weight": 3, "pool": {}}, "jpeg": {}}
    manager = MultiVisualRewardManager(settings(reward_functions=parts), None, None)
    manager._pooled["mine"] = PooledScorer([Process()], 60)
    result = await manager.run_single(sample())
    extra = result["reward_extra_info"]
    assert (extra["reward/mine"], extra["reward/mine/size"]) == (0.5, 3)
    assert result["reward_score"] == pytest.approx((3 * 0.5 + extra["reward/jpeg"]) / 4)
