"""`drl fit` with reward models on the trainer's accelerators: their sizes, and the phases that have them."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from tests.ml.trainer.memory_estimate.small_jobs import job
from verl_omni.reward_loop.models.clip_model import ClipModel, load_once
from verl_omni.trainer.memory_estimate import advice, reward_memory
from verl_omni.trainer.memory_estimate import estimate as estimates
from verl_omni.trainer.memory_estimate.engine_memory import EngineMemory
from verl_omni.trainer.memory_estimate.estimate import DEVICE_CONTEXT, Setup, estimate
from verl_omni.trainer.memory_estimate.pool_estimate import RolloutPool, estimate_pools
from verl_omni.trainer.memory_estimate.trainer_memory import TrainerMemory


def reward(scorer: str, batch: int = 32, **kwargs: Any) -> Any:
    settings = {"device": "trainer", **kwargs}
    return OmegaConf.create({"reward_functions": {}, "scorer": scorer, "scorer_kwargs": settings, "batch_size": batch})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scorer", "parameters", "dtype"),
    [
        # Numbers of parameters on the hub; for HPSv3, Qwen2-VL-7B's without its head, which is not loaded.
        ("clip_score", 151_277_313, torch.float32),
        ("aesthetic", 427_616_513, torch.float32),
        ("pickscore", 986_109_441, torch.float32),
        ("hpsv2", 986_109_441, torch.float32),  # the same model
        ("hpsv3", 8_291_375_616 - 152_064 * 3584, torch.bfloat16),
    ],
)
def test_the_sizes_of_the_default_models_are_the_published_ones(
    scorer: str, parameters: int, dtype: torch.dtype
) -> None:
    memory = reward_memory.measure(reward(scorer))
    buffers = 4096  # positions
    assert 0 <= memory.weights - parameters * dtype.itemsize <= buffers
    assert 0 < reward_memory.measure(reward(scorer, batch=8)).activations < memory.activations


@pytest.mark.slow
def test_the_size_of_videoalign_is_that_of_its_base_model_and_adapter() -> None:
    """One video is scored at a time, so the batch changes nothing."""
    width, inner, groups = 1536, 8960, 256
    linear = 2 * (width + width) + 2 * (width + groups) + 3 * (width + inner)
    parameters = 2_208_985_600 + 28 * reward_memory.ADAPTER_RANK * linear  # the first is Qwen2-VL-2B's on the hub
    memory = reward_memory.measure(reward("videoalign"))
    assert 0 <= memory.weights - 2 * parameters <= 4096
    assert memory == reward_memory.measure(reward("videoalign", batch=8))
    assert 0 < memory.activations < 2 * 2**30


@pytest.mark.slow
def test_the_sizes_of_other_models_are_those_of_their_parts() -> None:
    linear = sum((inputs + 1) * outputs for inputs, outputs in ((768, 1024), (1024, 128), (128, 64), (64, 16), (16, 1)))
    block = 12 * 1024**2 + 13 * 1024  # attention, MLP of 4 times the width, and norms, with biases
    vision = 24 * block + (197 + 1 + 16 * 16 * 3 + 1 + 2) * 1024
    self_attention = 12 * 768**2 + 13 * 768
    cross = 2 * (768 + 1) * 768 + 2 * (1024 + 1) * 768 + 2 * 768
    text = 12 * (self_attention + cross) + (30524 + 512 + 2) * 768
    buffers = 8 * 512  # positions
    assert 0 <= reward_memory.measure(reward("image_reward")).weights - 4 * (linear + vision + text) <= buffers
    detector = reward_memory.measure(reward("geneval"))
    assert detector.weights > reward_memory.measure(reward("aesthetic")).weights, "the colors' model and the detector"
    assert detector.activations > 0


def test_the_weights_of_a_folder_are_those_that_are_loaded(tmp_path: Path) -> None:
    from tests.ml.reward_loop.test_clip_scorers import write_clip

    write_clip(tmp_path)
    model = load_once(ClipModel, str(tmp_path), str(tmp_path), "cpu").model
    loaded = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
    assert reward_memory.measure(reward("pickscore", model_name_or_path=str(tmp_path))).weights == loaded
    assert reward_memory.measure(reward("pickscore", device="cpu")) == reward_memory.RewardMemory()


def test_a_model_that_is_not_known_is_named_with_what_to_do() -> None:
    with pytest.raises(FileNotFoundError, match=r"reward model me/clip .* hf download me/clip --include '\*.json'"):
        reward_memory.measure(reward("clip_score", model_name_or_path="me/clip"))


def parts(phases: tuple[estimates.Phase, ...], phase: str) -> dict[str, int]:
    (parts_of_phase,) = (dict(phase_parts.parts) for phase_parts in phases if phase_parts.name == phase)
    return parts_of_phase


def setup(**given: Any) -> Setup:
    ones: Any = {field.name: 1 for field in dataclasses.fields(Setup)}
    return Setup(
        **{**ones, "pairs": 0, "ranks": 2, "scorers": 3, "scorer_weights": 1000, "scorer_activations": 70, **given}
    )


TRAINER = TrainerMemory(**{field.name: 1 for field in dataclasses.fields(TrainerMemory)})
ENGINE = EngineMemory(
    **{**{field.name: 1 for field in dataclasses.fields(EngineMemory)}, "passes": {"step": 1}, "offloaded": 0}
)


def test_scorers_are_on_the_device_while_they_score_and_in_host_memory_otherwise() -> None:
    result = estimate(setup(sleeps=True), TRAINER, ENGINE)
    scoring = parts(result.device, "scoring")
    assert scoring["reward models"] == 2000 and scoring["reward activations"] == 140, "two of three on one device"
    assert "engine transformer" not in scoring
    assert all(parts(result.device, phase.name)["device contexts"] == 4 * DEVICE_CONTEXT for phase in result.device)
    for phase in ("generation", "update", "weight sync"):
        assert "reward models" not in parts(result.device, phase)
    assert all(
        parts(result.host, name)["reward models at rest"] == 3000 for name in ("generation", "scoring", "update")
    )
    assert parts(estimate(setup(sleeps=False), TRAINER, ENGINE).device, "scoring")["engine transformer"] == 1
    on_cpu = estimate(setup(accelerator=False), TRAINER, ENGINE)
    assert {parts(on_cpu.host, phase.name)["reward models"] for phase in on_cpu.host} == {4000}
    none = estimate(setup(scorers=0), TRAINER, ENGINE)
    assert [phase.name for phase in none.device] == ["generation", "update", "weight sync"]
    trainer_pool, engines = estimate_pools(setup(), RolloutPool(1, 2, 1, 1), TRAINER, ENGINE)
    assert parts(trainer_pool.device, "scoring")["reward models"] == 2000
    assert "scoring" not in [phase.name for phase in engines.device]


def test_a_job_that_shares_has_a_phase_for_its_scorers_and_advice_about_them(tmp_path: Path) -> None:
    from tests.ml.reward_loop.test_clip_scorers import write_clip
    from verl_omni.pipelines.sd3.tiny_model import make_tiny_sd3
    from verl_omni.trainer.memory_estimate.job_estimate import JobEstimator

    write_clip(tmp_path / "clip")
    make_tiny_sd3(tmp_path / "model")
    models = [f"reward.scorer_kwargs.{name}_name_or_path={tmp_path / 'clip'}" for name in ("model", "processor")]
    config = job(tmp_path / "model", "reward.scorer=pickscore", *models, "reward.scorer_kwargs.device=trainer")
    result = JobEstimator(accelerator=True).estimate(config)
    assert result.setup.scorers == 1 and result.setup.waiting > 0
    assert parts(result.estimate.device, "scoring")["reward models"] == result.setup.scorer_weights > 0
    assert ("reward.batch_size", 8) in [(change.setting, change.value) for change in advice.changes(config)]
