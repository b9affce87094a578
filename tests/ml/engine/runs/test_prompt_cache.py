"""A whole run with prompt embeddings on disk equals one without, and a second one encodes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ml.run_metrics import without_durations

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

PROMPTS = ("a red circle", "a blue square on the left", "two green crosses")
ROLLOUT = "actor_rollout_ref.rollout"
ENCODERS = 3  # of Stable Diffusion 3
STEPS = 4  # two epochs, the second of which starts with a prompt of the first


@pytest.fixture(scope="module")
def passes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """File with a line for each pass of a text encoder in processes that are forked from this one."""
    from transformers import CLIPTextModelWithProjection, T5EncoderModel

    file = tmp_path_factory.mktemp("passes") / "passes"
    file.touch()

    def recorded(forward: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **more: Any) -> Any:
            with file.open("a") as written:
                written.write("pass\n")
            return forward(*arguments, **more)

        return run

    with pytest.MonkeyPatch.context() as patch:
        for encoder in (CLIPTextModelWithProjection, T5EncoderModel):
            patch.setattr(encoder, "forward", recorded(encoder.forward))
        yield file


@pytest.fixture(scope="module")
def train(passes: Path, shared_ray: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Train from the same model; returns the metrics of the steps, and the number of passes of text encoders."""
    from verl_omni.pipelines.sd3.tiny_model import make_tiny_sd3

    folder = tmp_path_factory.mktemp("runs")
    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS))

    def trained(name: str, *overrides: str) -> tuple[list[dict[str, Any]], int]:
        make_tiny_sd3(folder / name / "model")  # a copy elsewhere has the same encoders
        passes.write_text("")
        shared_ray.train(
            [
                f"data.train_files='{prompts}'",
                f"data.val_files='{prompts}'",
                "data.train_batch_size=2",
                "data.max_prompt_length=16",
                f"actor_rollout_ref.model.path='{folder / name / 'model'}'",
                "actor_rollout_ref.model.lora_rank=4",
                "actor_rollout_ref.actor.ppo_mini_batch_size=2",
                f"trainer.default_local_dir='{folder / name / 'run'}'",
                f"trainer.total_training_steps={STEPS}",
                "trainer.test_freq=2",
                "trainer.save_freq=-1",
                "reward.scorer=brightness",
                f"{ROLLOUT}.n=2",
                f"{ROLLOUT}.max_num_seqs=1",  # the batch size affects rounding
                f"{ROLLOUT}.pipeline.height=64",
                f"{ROLLOUT}.pipeline.width=64",
                f"{ROLLOUT}.pipeline.num_inference_steps=4",
                f"{ROLLOUT}.pipeline.guidance_scale=3.0",
                f"{ROLLOUT}.pipeline.max_sequence_length=16",
                *overrides,
            ]
        )
        lines = (folder / name / "run" / "metrics.jsonl").read_text().splitlines()
        return [without_durations(json.loads(line)) for line in lines], len(passes.read_text().splitlines())

    return trained


def test_metrics_are_the_same_without_a_cache_with_a_cold_one_and_with_a_warm_one(
    train: Callable[..., Any], tmp_path: Path
) -> None:
    cache = f"{ROLLOUT}.prompt_cache_dir='{tmp_path / 'cache'}'"
    without, every_pass = train("without")
    cold, passes = train("cold", cache)
    files = sorted((tmp_path / "cache").rglob("*.safetensors"))
    assert cold == without and [line["step"] for line in cold] == list(range(STEPS + 1))
    assert all(line["actor/grad_norm"] > 0 for line in cold if "actor/grad_norm" in line)
    assert passes == ENCODERS * len(files) < every_pass, "each prompt once: the data set's, and the empty one"
    before = {file: file.stat().st_mtime_ns for file in files}

    warm, passes = train("warm", cache)
    assert warm == cold and passes == 0
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "cache").rglob("*.safetensors")} == before
