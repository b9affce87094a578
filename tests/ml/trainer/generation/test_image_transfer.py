"""Images are sent to the trainer at evaluations, not in training steps."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from verl import DataProto

from tests.ml import smallest_job
from tests.ml.trainer.runs_in_memory import run_in_memory
from verl_omni.samples import GENERATED, Sample
from verl_omni.trainer.settings import judge_settings, process_counts
from verl_omni.utils.columns import objects

MODEL = Path(__file__).parents[4] / "examples" / "shapes-sd3"
ROWS = [{"raw_prompt": [{"role": "user", "content": "a"}], "extra_info": {"prompt": "a"}} for _ in range(2)]


class Loop:
    """Agent loop that returns black images of weight version 0, if the batch requests them."""

    def __init__(self) -> None:
        self.carried: list[bool] = []

    def generate_sequences(self, prompts: DataProto) -> DataProto:
        size = len(prompts)
        self.carried.append(prompts.meta_info.get("carry_responses", True))
        tensors = {"rm_scores": torch.ones(size, 1), "rollout_log_probs": torch.zeros(size, 2)}
        if self.carried[-1]:
            tensors["responses"] = torch.zeros(size, 3, 8, 8, dtype=torch.uint8)
        columns = {**prompts.non_tensor_batch, GENERATED: objects([Sample(version=0)] * size)}
        return DataProto.from_dict(tensors=tensors, non_tensors=columns)


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def trainer(loop: Loop, tmp_path: Path) -> Any:
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "a"}\n')
    config = smallest_job.load(
        f"data.train_files='{tmp_path / 'prompts.jsonl'}'",
        "data.train_batch_size=2",
        f"actor_rollout_ref.model.path='{MODEL}'",
        "actor_rollout_ref.model.architecture=StableDiffusion3Pipeline",
        "actor_rollout_ref.actor.ppo_mini_batch_size=2",
    )
    process_counts.fill_in(config, cpus=2)
    stack = SimpleNamespace(agent_loop=loop, workers=None, pool=None, judges=None)
    return run_in_memory(config, stack, tmp_path / "run", ROWS, ROWS)


def test_a_training_step_gets_no_images(trainer: Any, loop: Loop) -> None:
    samples = trainer.loop.batches.generate(1, 0)
    assert loop.carried == [False] and samples.images is None
    assert samples.scores.tolist() == [1.0] * 16 and samples.tensors["rollout_log_probs"].shape == (16, 2)


def test_a_training_step_whose_samples_a_judge_scores_later_gets_no_images(trainer: Any, loop: Loop) -> None:
    trainer.config.reward.reward_model.enable = True
    assert judge_settings.sleeps(trainer.config), "the default on the trainer's accelerators"
    assert trainer.loop.batches.generate(1, 0).images is None and loop.carried == [False]


def test_an_evaluation_gets_and_saves_images(trainer: Any, loop: Loop) -> None:
    trainer.loop.evaluation.evaluate(0)
    assert loop.carried == [True]
    folder = trainer.folder.path / "samples" / "step_000000"
    kinds = [entry.get("kind", "prompt") for entry in json.loads((folder / "index.json").read_text())]
    assert kinds == ["prompt", "best", "worst"], "the two rows have the same prompt, and the report shows none twice"
    assert len(list(folder.glob("*.png"))) == 3
