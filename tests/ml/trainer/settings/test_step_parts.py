"""In which settings a step's update overlaps its generation."""

from typing import Any

import pytest
from omegaconf import OmegaConf

from tests.ml import smallest_job
from verl_omni.platforms.cpu import process_tuning
from verl_omni.trainer import startup
from verl_omni.trainer.settings import step_parts
from verl_omni.workers.algorithms.estimators import ESTIMATORS

pytestmark = pytest.mark.slow  # composes all settings for each

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
CORRECTION = "algorithm.rollout_correction"
ON_A_CPU = (
    f"{ROLLOUT}.free_cache_engine=false",
    f"{ROLLOUT}.n=4",
    f"{ACTOR}.fsdp_config.mixed_precision.param_dtype=float32",
    "actor_rollout_ref.model.lora_rank=4",
    "trainer.n_gpus_per_node=1",
)


def divide(
    *overrides: str, device: str = "cpu", cores: int = 4, threads: int = 2, pads_prompts: bool = True, **changes: Any
) -> step_parts.StepParts:
    config = smallest_job.load(*ON_A_CPU, *overrides)
    for name, value in changes.items():
        OmegaConf.update(config, name.replace("__", "."), value)
    return step_parts.divide(config, device=device, cores=cores, threads=threads, pads_prompts=pads_prompts)


@pytest.mark.parametrize(("prompts", "sizes"), [(2, [4, 4]), (5, [8, 4, 4, 4]), (8, [8, 8, 8, 8]), (9, [12, 8, 8, 8])])
def test_parts_are_whole_prompts_and_at_most_four(prompts: int, sizes: list[int]) -> None:
    parts = divide(f"data.train_batch_size={prompts}", f"{ACTOR}.ppo_mini_batch_size={prompts}")
    assert parts == step_parts.StepParts(sizes, "")


@pytest.mark.parametrize(
    ("reason", "overrides"),
    [
        ("sleep", (f"{ROLLOUT}.free_cache_engine=true",)),
        ("ahead", (f"{ROLLOUT}.nnodes=1",)),
        ("one prompt", ("data.train_batch_size=1", f"{ACTOR}.ppo_mini_batch_size=1")),
        ("several ranks", ("trainer.n_gpus_per_node=2",)),
        ("not complete", (f"{ACTOR}.ppo_mini_batch_size=4",)),
        ("not complete", (f"{ACTOR}.ppo_epochs=2",)),
        ("shuffled", (f"{ACTOR}.shuffle=true",)),
        ("one micro-batch", (f"{ACTOR}.ppo_micro_batch_size_per_gpu=32",)),
        ("mixed precision", (f"{ACTOR}.fsdp_config.mixed_precision.param_dtype=bfloat16",)),
        ("draws", (f"{ACTOR}.diffusion_loss.loss_mode=diffusion_nft",)),
        ("draws", ("algorithm.timestep_fraction=0.5",)),
        ("before the update", (f"{CORRECTION}.rollout_is=sequence",)),
        ("standard deviation", (f"{ACTOR}.use_kl_loss=true",)),
    ],
)
def test_a_step_is_one_part_where_the_update_needs_all_samples(reason: str, overrides: tuple[str, ...]) -> None:
    parts = divide(*overrides)
    assert len(parts.sizes) == 1 and reason in parts.reason


def test_a_step_is_one_part_on_an_accelerator_and_with_prompts_of_several_lengths() -> None:
    assert "accelerator" in divide(device="cuda").reason
    assert "padded" in divide(pads_prompts=False).reason


def test_a_step_is_one_part_where_scores_are_compared() -> None:
    assert "normalized" in divide(reward__aggregation="normalized_sum").reason


def test_a_step_is_one_part_with_an_estimator_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ESTIMATORS._entries, "own", "own:estimate")
    assert "estimator" in divide(algorithm__adv_estimator="own").reason


def test_advantages_per_prompt_and_a_kl_loss_overlap() -> None:
    assert len(divide(f"{ACTOR}.use_kl_loss=true", "algorithm.global_std=false").sizes) == 4


@pytest.mark.parametrize(
    ("cores", "variables", "parts"),
    [
        (2, {process_tuning.THREADS: "2", "OMP_NUM_THREADS": "1"}, 4),
        (2, {"OMP_NUM_THREADS": "1,1"}, 4),
        (2, {"OMP_NUM_THREADS": "2"}, 1),
        (2, {}, 1),
        (1, {process_tuning.THREADS: "1", "OMP_NUM_THREADS": "1"}, 1),
    ],
)
def test_a_step_has_parts_if_engine_and_trainer_have_cores_of_their_own(
    monkeypatch: pytest.MonkeyPatch, cores: int, variables: dict[str, str], parts: int
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    for name in (process_tuning.THREADS, "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    config = smallest_job.load(*ON_A_CPU, "data.train_batch_size=8", f"{ACTOR}.ppo_mini_batch_size=8")
    config.actor_rollout_ref.model.architecture = "StableDiffusion3Pipeline"
    step_parts = startup.parts_of_step(config)
    assert step_parts.sizes == [32 // parts] * parts
    assert ("few cores" in step_parts.reason) == (parts == 1)
