"""The smallest job: the settings that every run needs, for tests that change a few more."""

from typing import Any

import pytest

from verl_omni.trainer.settings import configuration

REQUIRED = ("data.train_files=t", "actor_rollout_ref.model.path=m", "trainer.total_training_steps=1")
FLOAT32 = (
    "actor_rollout_ref.rollout.dtype=float32",
    "actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=float32",
)


def load(*overrides: str) -> Any:
    """The settings of the smallest job with overrides; a later override of a setting replaces an earlier one."""
    return configuration.load([*REQUIRED, *overrides])


def refusal(*overrides: str) -> str:
    """Why the smallest job with overrides is refused."""
    with pytest.raises(configuration.SettingsError) as caught:
        load(*overrides)
    return str(caught.value)
