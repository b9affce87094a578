"""Settings of the reference that this trainer supports in part: the other values are refused before anything starts."""

import inspect

import pytest
import torch

from tests.ml import smallest_job
from tests.ml.smallest_job import refusal
from verl_omni.settings_schema.declarations import SETTINGS
from verl_omni.trainer.settings import supported_values

ROLLOUT = "actor_rollout_ref.rollout"


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
    assert refusal(f"{setting}=1.5") == f"{setting}: 1.5 is not supported; write a whole number, such as 8"
    smallest_job.load(f"{setting}={2**32 - 1}")
    for seed in (2**32, 2**40, -1):
        if setting in HASHED:
            smallest_job.load(f"{setting}={seed}")
        else:
            problem = (
                f"{setting}: must be from 0 to 4294967295 (2^32 - 1), because a CPU uses 32 bits of a seed: {seed}"
            )
            assert refusal(f"{setting}={seed}") == problem


def test_an_adapter_without_effect_is_refused_and_gradients_may_be_unlimited() -> None:
    overrides = ["actor_rollout_ref.model.lora_alpha=0", "actor_rollout_ref.actor.grad_clip=inf"]
    config = smallest_job.load(*overrides)
    assert config.actor_rollout_ref.actor.grad_clip == float("inf")
    assert "lora_alpha: must be positive: 0" in refusal(*overrides, "actor_rollout_ref.model.lora_rank=8")


def test_the_arguments_of_the_optimizer_are_those_of_torch() -> None:
    separate = {"params", "lr", "betas", "weight_decay"}  # with settings of their own
    assert set(supported_values.ADAMW) == inspect.signature(torch.optim.AdamW).parameters.keys() - separate


@pytest.mark.parametrize("name", [name for name, setting in SETTINGS.items() if setting.values])
def test_another_value_is_refused_with_what_to_write(name: str) -> None:
    message = refusal(f"++{name}={'{neither: 1}' if isinstance(SETTINGS[name].values[0], dict) else 'neither'}")
    assert message.startswith(f"{name}: ")
    assert "is not supported; write " in message
    assert SETTINGS[name].advice in message


def test_every_tracker_of_verl_is_known() -> None:
    from verl.utils.tracking import Tracking

    assert set(supported_values.TRACKER_PACKAGES) == set(Tracking.supported_backend)
