"""Overrides are applied to the defaults as Hydra applies them, although the defaults are read only once."""

from __future__ import annotations

import pytest
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from verl_omni.trainer import settings

REQUIRED = ["data.train_files=t", "actor_rollout_ref.model.path=m", "trainer.total_training_steps=1"]
GIVEN = [
    "data.train_files=[a,b]", "actor_rollout_ref.rollout.n=4", "actor_rollout_ref.actor.optim.lr=1e-3",
    "++reward.scorer_kwargs.color=red", "~data.custom_cls.path", "++data.apply_chat_template_kwargs.deep={one: 1}",
]  # fmt: skip


def test_the_result_is_that_of_hydra() -> None:
    with initialize_config_module("verl_omni.trainer.config", version_base="1.3"):
        expected = compose(settings.CONFIG_NAME, overrides=["loss=diffusion_nft", *REQUIRED, *GIVEN])
    loss = "actor_rollout_ref.actor.diffusion_loss.loss_mode=diffusion_nft"
    found = settings.load([loss, *REQUIRED, *GIVEN])
    assert OmegaConf.to_container(found) == OmegaConf.to_container(expected)
    assert OmegaConf.is_struct(found) and OmegaConf.is_struct(expected)


def test_overrides_do_not_reach_the_next_configuration() -> None:
    first = settings.load([*REQUIRED, "data.seed=7", "++reward.scorer_kwargs.color=red"])
    first.data.seed = 8
    second = settings.load(REQUIRED)
    assert (second.data.seed, second.reward.scorer_kwargs) == (0, {})


def test_a_sweep_is_refused_with_how_to_write_a_list() -> None:
    with pytest.raises(settings.SettingsError, match=r"To use it as a list, use key=\[value1,value2\]"):
        settings.load([*REQUIRED, "data.train_files=a,b"])
