"""Reward workers of a run: the scores of a batch by a judge that sleeps otherwise."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from ray.exceptions import ActorDiedError
from tensordict import TensorDict
from verl import DataProto

from verl_omni.agent_loop.rows import SampleFailed
from verl_omni.reward_loop.reward_manager import VisualRewardManager
from verl_omni.reward_loop.scorer_results import FAILURE, ScorerFailed, ScoringFailure, unscored
from verl_omni.trainer.rewards import reward_workers
from verl_omni.trainer.rewards.reward_workers import RewardWorker, RewardWorkers, parts_of_groups

MODEL = Path(__file__).parents[4] / "examples" / "shapes-sd3"


class Manager:
    """Scores a sample by its number; the sample 2 cannot be scored."""

    async def run_single(self, data: DataProto) -> dict[str, Any]:
        number = int(data.batch["responses"][0])
        if number == 2:
            raise ScorerFailed("scorer mine.py:judge failed: ValueError: no number")
        return {"reward_score": float(number), "reward_extra_info": {}}


def samples(numbers: list[int]) -> DataProto:
    prompts = np.empty(len(numbers), dtype=object)
    prompts[:] = [[{"role": "user", "content": f"{number} circles"}] for number in numbers]
    return DataProto(
        batch=TensorDict({"responses": torch.tensor(numbers)}, batch_size=len(numbers)),
        non_tensor_batch={"raw_prompt": prompts},
    )


def worker() -> Any:
    reward_worker: Any = object.__new__(RewardWorker)
    reward_worker.reward_manager = Manager()
    return reward_worker


def worker_with(path: Path) -> RewardWorker:
    """A worker as Ray makes it, with the function `compute_score` of a user's file."""
    module = {"path": "pkg://verl_omni.reward_loop.reward_manager"}
    model = {"tokenizer_path": str(MODEL / "tokenizer"), "path": str(MODEL)}
    reward = {
        "reward_model": {"enable": False, "model_path": None},
        "custom_reward_function": {"path": str(path), "name": "compute_score"},
        "reward_manager": {"source": "importlib", "name": "VisualRewardManager", "module": module},
    }
    return RewardWorker(OmegaConf.create({"reward": reward, "actor_rollout_ref": {"model": model}}))


def test_the_file_of_a_users_function_is_a_module(tmp_path: Path) -> None:
    """Without one, dataclasses whose annotations are texts fail, and so do objects that are pickled."""
    path = tmp_path / "mine.py"
    path.write_text(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "@dataclass\n"
        "class Verdict:\n"
        "    score: float\n"
        "def compute_score(data_source, solution_image, ground_truth, extra_info):\n"
        "    return Verdict(0.5).score\n"
    )
    reward_worker = worker_with(path)
    scorer, _ = reward_worker.reward_manager.select_scorer("any")
    assert scorer(data_source="", solution_image=None, ground_truth="", extra_info={}) == 0.5
    assert reward_worker.config.reward.custom_reward_function.path == str(path), "errors name the file"


def test_a_file_that_cannot_be_loaded_says_why(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("import no_such_package\n")
    with pytest.raises(ModuleNotFoundError, match="No module named 'no_such_package'"):
        worker_with(path)
    path.write_text("def judge(): ...\n")
    with pytest.raises(ValueError, match=r"mine\.py has no function 'compute_score'"):
        worker_with(path)


async def test_samples_in_the_object_store_are_loaded_to_be_scored() -> None:
    kept = samples([3, 1])

    async def tensors(row: int) -> dict[str, torch.Tensor]:
        return {"responses": kept.batch["responses"][row : row + 1]}

    columns = {**kept.non_tensor_batch, "unscored": np.array([tensors(0), tensors(1)], dtype=object)}
    results = await worker().compute_score_batch(DataProto(batch=None, non_tensor_batch=columns))
    assert [result["reward_score"] for result in results] == [3.0, 1.0]


async def test_a_sample_that_cannot_be_scored_is_named_by_scorer_and_prompt() -> None:
    message = (
        r"scoring a sample \(prompt '2 circles'\) failed: ScorerFailed: scorer mine.py:judge failed: ValueError: no num"
    )
    with pytest.raises(SampleFailed, match=message):
        await worker().compute_score_batch(samples([3, 2, 1]))


@pytest.mark.parametrize("workers", [1, 2, 3, 9])
def test_the_samples_of_a_prompt_go_to_one_worker(workers: int) -> None:
    groups = list("abacabcd")
    parts = parts_of_groups(groups, workers)
    assert sorted(row for part in parts for row in part) == list(range(8))
    assert len(parts) == min(workers, 4) and all(parts)
    assert all(len({place for place, part in enumerate(parts) for row in part if groups[row] == g}) == 1 for g in "abc")


def test_a_reward_worker_whose_process_has_ended_is_named_with_its_scorer(monkeypatch: pytest.MonkeyPatch) -> None:
    def get(reply: Any) -> Any:
        raise ActorDiedError

    two_workers: Any = object.__new__(RewardWorkers)
    two_workers.config = OmegaConf.create({"reward": {"deadline_seconds": 1, "scorer": "genrm_ocr"}})
    two_workers.reward_loop_workers = ["first", "second"]
    monkeypatch.setattr(reward_workers.ray, "wait", lambda waiting, timeout: (waiting, []))
    monkeypatch.setattr(reward_workers.ray, "get", get)
    with pytest.raises(RuntimeError, match=r"reward worker 1 is gone: ActorDiedError: .*the scorer runs \(genrm_ocr\)"):
        two_workers._wait({"reply": "second"})


def test_samples_that_could_not_be_scored_and_fields_that_some_lack_have_columns() -> None:
    failure = ScoringFailure("scorer mine.py:judge failed: ValueError: no number")
    results = [
        {"reward_score": 0.5, "reward_extra_info": {"acc": 0.5, "x": 1}},
        {"reward_score": 1.0, "reward_extra_info": {"acc": 1.0}},
        unscored(failure),
    ]
    collected = RewardWorkers.collected(VisualRewardManager, samples([0, 1, 2]), results)
    assert collected.batch["rm_scores"].isnan().flatten().tolist() == [False, False, True]
    assert collected.meta_info["reward_extra_keys"] == ["acc", "x"]
    assert collected.non_tensor_batch["acc"].tolist() == [0.5, 1.0, None]
    assert collected.non_tensor_batch["x"].tolist() == [1, None, None]
    assert collected.non_tensor_batch[FAILURE].tolist() == [None, None, failure]
