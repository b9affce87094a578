"""Every default that differs from the reference's has a reason."""

from __future__ import annotations

import pytest

from tools import other_defaults
from tools.other_defaults import OtherDefault


def test_a_new_deviation_needs_a_reason_and_a_reason_a_deviation() -> None:
    one = OtherDefault("data.shuffle", "True", ("false",))
    with pytest.raises(LookupError, match=r"no reason for the default of data\.shuffle"):
        other_defaults.check([one], {})
    with pytest.raises(LookupError, match=r"reason for data\.seed, of which the default is the same"):
        other_defaults.check([one], {"data.shuffle": "why", "data.seed": "why"})


def test_the_same_value_in_another_notation_is_no_deviation() -> None:
    found = {each.name: each for each in other_defaults.find()}
    assert found["data.train_batch_size"] == OtherDefault("data.train_batch_size", "1024", ("8",))
    same = (
        "actor_rollout_ref.actor.optim.betas",
        "actor_rollout_ref.model.custom_chat_template",
        "data.shuffle",
        "actor_rollout_ref.actor.diffusion_loss.kl_mask_threshold",
        "actor_rollout_ref.actor.diffusion_loss.clip_ratio",
    )
    assert not found.keys() & set(same)


def test_a_default_that_is_not_written_here_is_compared_too() -> None:
    """That of evaluations is the setting of training samples; a setting with another name here has that one's."""
    found = {each.name: each.here for each in other_defaults.find()}
    steps = "actor_rollout_ref.rollout.val_kwargs.pipeline.num_inference_steps"
    assert found[steps] == ("${actor_rollout_ref.rollout.pipeline.num_inference_steps}",)
    assert found["actor_rollout_ref.actor.fsdp_config.dtype"] == ("null",)
    assert "actor_rollout_ref.actor.optim.clip_grad" not in found
