"""Settings of the reference that this trainer supports in part: the other values are refused before anything starts."""

from __future__ import annotations

import inspect

import pytest
import torch

from tests.ml import smallest_job
from tests.ml.smallest_job import refusal
from verl_omni.settings_schema.declarations import SETTINGS
from verl_omni.trainer.data.prompt_dataset import epoch_order
from verl_omni.trainer.settings import supported_values
from verl_omni.utils.seeds import hashed_seed

ROLLOUT = "actor_rollout_ref.rollout"


@pytest.mark.parametrize(
    ("override", "range_"),
    [
        ("data.train_batch_size=0", "positive"),
        ("actor_rollout_ref.actor.grad_clip=-1", "positive: -1; for gradients that are not clipped, write inf"),
        ("actor_rollout_ref.actor.diffusion_loss.clip_ratio=-1", "positive: -1"),
        ("actor_rollout_ref.actor.optim.lr=nan", "not be negative: nan"),
        (f"{ROLLOUT}.n=0", "positive: 0"),
        (f"{ROLLOUT}.pipeline.guidance_scale=nan", "not be negative: nan"),
        (f"{ROLLOUT}.val_kwargs.seed=null", "be a number: every evaluation"),
    ],
)
def test_a_number_out_of_its_range_is_refused(override: str, range_: str) -> None:
    assert f"{override.partition('=')[0]}: must {'be ' if range_[0] == 'p' else ''}{range_}" in refusal(override)


@pytest.mark.parametrize(("loss", "refused"), [("flow_grpo", True), ("diffusion_nft", True), ("diffusion_dpo", False)])
def test_one_sample_of_a_prompt_has_nothing_to_be_compared_with(loss: str, refused: bool) -> None:
    overrides = ["actor_rollout_ref.model.lora_rank=8", f"actor_rollout_ref.actor.diffusion_loss.loss_mode={loss}"]
    if refused:
        assert f"{ROLLOUT}.n: must be at least 2: an advantage compares" in refusal(*overrides, f"{ROLLOUT}.n=1")
    else:
        smallest_job.load(*overrides, "algorithm.sample_source=offline", f"{ROLLOUT}.n=1")


OF_32_BITS = ["data.seed", "trainer.seed", "actor_rollout_ref.actor.seed", f"{ROLLOUT}.val_kwargs.seed"]
HASHED = [f"{ROLLOUT}.seed", f"{ROLLOUT}.algo.sde_window_seed"]


@pytest.mark.parametrize("setting", [*OF_32_BITS, *HASHED])
def test_every_seed_that_is_accepted_has_random_numbers_of_its_own(setting: str) -> None:
    """Torch's generator on a CPU takes 32 bits of a seed; the seeds of samples and windows are hashed first."""
    assert refusal(f"{setting}=1.5") == f"{setting}: must be a whole number: 1.5"
    smallest_job.load(f"{setting}={2**32 - 1}")
    for seed in (2**32, 2**40, -1):
        if setting in HASHED:
            smallest_job.load(f"{setting}={seed}")
        else:
            problem = (
                f"{setting}: must be from 0 to 4294967295 (2^32 - 1), because a CPU uses 32 bits of a seed: {seed}"
            )
            assert refusal(f"{setting}={seed}") == problem


def test_orders_of_the_largest_and_the_smallest_seed_differ() -> None:
    orders = {tuple(epoch_order(50, seed, 0).tolist()) for seed in (0, 1, 2**31, 2**32 - 1)}
    assert len(orders) == 4
    assert epoch_order(50, 2**40, 0).equal(epoch_order(50, 0, 0)), "why it is refused"
    windows = {hashed_seed("window", seed, 1) % 2**32 for seed in (0, 2**32, 2**40, -1)}
    assert len(windows) == 4, "why these may have more bits"


@pytest.mark.parametrize("setting", ["max_prompt_length", "seed", "train_batch_size", "train_max_samples"])
def test_numbers_of_rows_and_tokens_are_whole_and_of_tokens_positive(setting: str) -> None:
    assert refusal(f"data.{setting}=2.5") == f"data.{setting}: must be a whole number: 2.5"
    smallest_job.load(f"data.{setting}=2.0")
    assert "data.max_prompt_length: must be positive: 0" in refusal("data.max_prompt_length=0")


def test_an_adapter_without_effect_is_refused_and_gradients_may_be_unlimited() -> None:
    overrides = ["actor_rollout_ref.model.lora_alpha=0", "actor_rollout_ref.actor.grad_clip=inf"]
    config = smallest_job.load(*overrides)
    assert config.actor_rollout_ref.actor.grad_clip == float("inf")
    assert "lora_alpha: must be positive: 0" in refusal(*overrides, "actor_rollout_ref.model.lora_rank=8")


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["override_optimizer_config={epsilon: 1}"], "override_optimizer_config.epsilon: is not one of eps, amsgrad"),
        (["override_optimizer_config.lr=1"], "override_optimizer_config.lr: is not one of eps, amsgrad"),
        (["lr_warmup_steps_ratio=1.5"], "lr_warmup_steps_ratio: must be from 0 to 1: 1.5"),
        (["min_lr_ratio=-1"], "min_lr_ratio: must be from 0 to 1: -1"),
        (
            ["lr_warmup_steps=3", "lr_warmup_steps_ratio=0.5"],
            "lr_warmup_steps_ratio: is not read with lr_warmup_steps=3",
        ),
    ],
)
def test_wrong_settings_of_the_optimizer_are_refused(overrides: list[str], said: str) -> None:
    optim = "actor_rollout_ref.actor.optim"
    assert refusal(*(f"{optim}.{each}" for each in overrides)).startswith(f"{optim}.{said}")


def test_the_arguments_of_the_optimizer_are_those_of_torch() -> None:
    separate = {"params", "lr", "betas", "weight_decay"}  # with settings of their own
    assert set(supported_values.ADAMW) == inspect.signature(torch.optim.AdamW).parameters.keys() - separate


@pytest.mark.parametrize("name", [name for name, setting in SETTINGS.items() if setting.values])
def test_another_value_is_refused_with_what_to_write(name: str) -> None:
    message = refusal(f"++{name}={'{neither: 1}' if isinstance(SETTINGS[name].values[0], dict) else 'neither'}")
    assert message.startswith(f"{name}: ")
    assert "is not supported; write " in message
    assert SETTINGS[name].advice in message


@pytest.mark.parametrize(
    "setting",
    [
        "data.train_files=gs://bucket/train.jsonl",
        "data.val_files=[a.jsonl,hf://datasets/x]",
        "actor_rollout_ref.model.path=hf://stabilityai/sd3",
        "trainer.default_local_dir=gs://bucket/runs",
        "actor_rollout_ref.model.tokenizer_path=https://host/tokenizer",
    ],
)
def test_a_url_is_refused_instead_of_made_into_a_folder(setting: str) -> None:
    name = setting.partition("=")[0]
    assert refusal(setting).startswith(f"{name}: ")
    assert "is a URL, and the trainer reads files" in refusal(setting)


def test_results_are_sent_to_a_store_or_a_folder_of_a_repository() -> None:
    assert smallest_job.load("trainer.output.url=hf://owner/name/a-job").trainer.output.url
    assert "write s3://BUCKET/PREFIX, hf://OWNER/NAME/FOLDER or file:///FOLDER" in refusal(
        "trainer.output.url=gs://b/a"
    )
    assert "is no folder of a repository; write hf://OWNER/NAME/FOLDER" in refusal("trainer.output.url=hf://owner/name")


def test_a_tracker_must_exist_and_be_installed() -> None:
    assert "trainer.logger: unknown tracker tensorbord; did you mean tensorboard?" in refusal(
        "trainer.logger=[tensorbord]"
    )
    assert "trainer.logger: mlflow needs the Python package mlflow, which is not installed" in refusal(
        "trainer.logger=[console,mlflow]"
    )
    assert smallest_job.load("trainer.logger=[console,tensorboard]").trainer.logger == [
        "console",
        "tensorboard",
    ]


def test_every_tracker_of_verl_is_known() -> None:
    from verl.utils.tracking import Tracking

    assert set(supported_values.TRACKER_PACKAGES) == set(Tracking.supported_backend)


def test_resume_path_and_its_path_go_together() -> None:
    assert "trainer.resume_from_path: must be given" in refusal("trainer.resume_mode=resume_path")
    assert "is not read with trainer.resume_mode=auto; write resume_path" in refusal(
        "trainer.resume_from_path=x/step_000001"
    )


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        (f"{ROLLOUT}.val_kwargs.pipeline.num_inference_step=4", "did you mean num_inference_steps?"),
        (f"{ROLLOUT}.val_kwargs.algo.noise=0", "unknown setting; did you mean noise_level?"),
        ("actor_rollout_ref.model.extra_tokenizers.t5={pat: x}", "unknown setting; did you mean path?"),
        (f"{ROLLOUT}.engine_kwargs.vllm.max_num_seqs=4", "unknown setting"),
    ],
)
def test_a_misspelt_name_in_an_open_group_is_refused(setting: str, said: str) -> None:
    assert refusal(setting).startswith(f"{setting.partition('=')[0].removesuffix('.t5')}")
    assert said in refusal(setting)
