"""A scorer that ends its process: the reward worker starts again and scores its samples again, up to a limit."""

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.ml.local_ray import local_ray
from tests.ml.trainer.rewards.test_scorer_devices import MODEL, SEVERAL, load, samples
from verl_omni.reward_loop.reward_manager import MultiVisualRewardManager, VisualRewardManager
from verl_omni.reward_loop.scorer_deaths import LIMIT, ScorerDeaths
from verl_omni.reward_loop.scorer_results import FAILURE, ScorerFailed

SCORER = """
import os
from pathlib import Path


def compute_score(data_source, solution_image, ground_truth, extra_info, marks, ends):
    marks = Path(marks)
    with marks.open("ab") as file:
        file.write(b".")
    if marks.stat().st_size <= ends:
        os._exit(1)
    return 0.25
"""


def workers(folder: Path, ends: int) -> Any:
    """Reward workers with the scorer `mine`, which ends its process in so many calls."""
    from verl_omni.trainer.rewards.reward_workers import RewardWorkers

    (folder / "mine.py").write_text(SCORER)
    mine = f"path: {folder / 'mine.py'}, marks: {folder / 'marks'}, ends: {ends}"
    config = load(SEVERAL, f"reward.reward_functions={{mine: {{{mine}}}, brightness: {{}}}}")
    config.reward.num_workers = 1
    config.actor_rollout_ref.model.tokenizer_path = f"{MODEL}/tokenizer"
    return RewardWorkers(config, None)


@pytest.mark.slow  # starts Ray
def test_samples_of_a_process_that_ended_once_are_scored_again(tmp_path: Path) -> None:
    with local_ray(cpus=2):
        reward_workers = workers(tmp_path, ends=1)
        scored = reward_workers.compute_rm_score(samples(3))
        assert scored.batch["rm_scores"].flatten().tolist() == [0.125] * 3
        assert len((tmp_path / "marks").read_bytes()) >= 4
        actor = reward_workers.reward_loop_workers[0]._actor_id.hex()
        folder = Path(tempfile.gettempdir()) / f"reward-worker-{actor}"
        assert [(file.name, file.stat().st_size) for file in folder.iterdir()] == [("deaths.mine", 1)]
        reward_workers.stop()
        assert not folder.exists()


async def died(folder: Path, scorer: str) -> ScorerDeaths:
    """The deaths of a reward worker in which a scorer ended the process as often as it may."""
    for _ in range(LIMIT):
        await ScorerDeaths(folder).running(scorer).__aenter__()
    return ScorerDeaths(folder)


@pytest.mark.parametrize("held_out", [False, True])
async def test_only_a_trained_scorer_that_ended_its_process_too_often_ends_the_run(
    tmp_path: Path, settings: Any, sample: Any, held_out: bool
) -> None:
    parts = {"mine": {"name": "brightness", **({"use": "evaluation"} if held_out else {})}, "jpeg": {}}
    manager = MultiVisualRewardManager(settings(reward_functions=parts), None, None)
    manager.deaths = await died(tmp_path, "mine")
    message = f"reward 'mine' failed: the reward worker's process ended {LIMIT} times while it ran"
    if not held_out:
        with pytest.raises(ScorerFailed, match=message):
            await manager.run_single(sample())
        return
    result = await manager.run_single(sample(validate=True))
    assert result["reward_score"] == result["reward_extra_info"]["reward/jpeg"]
    assert result[FAILURE].text.startswith(message) and not result[FAILURE].required


async def test_a_single_scorer_that_ended_its_process_too_often_ends_the_run_by_its_name(
    tmp_path: Path, settings: Any, sample: Any
) -> None:
    manager = VisualRewardManager(settings(scorer="brightness"), None, None)
    manager.deaths = await died(tmp_path, "")
    with pytest.raises(ScorerFailed, match=f"scorer brightness failed: .* process ended {LIMIT} times while it ran"):
        await manager.run_single(sample())


async def test_the_next_process_counts_the_scorer_that_ran(tmp_path: Path) -> None:
    for number in range(LIMIT):
        deaths = ScorerDeaths(tmp_path)
        assert deaths.problem("a/b") is None, number
        async with deaths.running("other"):
            pass
        await deaths.running("a/b").__aenter__()  # the process ends here
        await deaths.running("a/b").__aenter__()
    deaths = ScorerDeaths(tmp_path)
    assert "ended 3 times" in str(deaths.problem("a/b"))
    assert deaths.problem("other") is None


async def test_after_a_death_of_several_scorers_one_call_runs_at_a_time(tmp_path: Path) -> None:
    deaths = ScorerDeaths(tmp_path)
    await deaths.running("one").__aenter__()
    await deaths.running("other").__aenter__()
    deaths = ScorerDeaths(tmp_path)
    most = 0
    now = 0

    async def call(scorer: str) -> None:
        nonlocal most, now
        async with deaths.running(scorer):
            now += 1
            most = max(most, now)
            await asyncio.sleep(0)
            now -= 1

    await asyncio.gather(call("one"), call("other"), call("one"))
    assert most == 1
    for _ in range(LIMIT):
        assert deaths.problem("one") is None
        await deaths.running("one").__aenter__()
        deaths = ScorerDeaths(tmp_path)
    assert deaths.problem("one") and deaths.problem("other") is None


async def test_a_scorer_runs_also_when_its_files_were_removed(tmp_path: Path) -> None:
    deaths = ScorerDeaths(tmp_path / "files")
    deaths.remove()
    async with deaths.running("one"):
        pass
    assert deaths.problem("one") is None
