"""What is not a group of settings is refused where the default is one."""

from __future__ import annotations

import pytest
from omegaconf import OmegaConf

from tests.ml import smallest_job

OPTIMIZER = "actor_rollout_ref.actor.optim.override_optimizer_config"
TOKENIZERS = "actor_rollout_ref.model.extra_tokenizers"


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("trainer=null", "trainer: must be a group of settings, not null"),
        ("reward.reward_manager.module=null", "reward.reward_manager.module: must be a group of settings, not null"),
        ("reward.custom_reward_function=mine.py", "reward.custom_reward_function: must be a group of settings, not mi"),
        ("reward.reward_functions=5", "reward.reward_functions: must be a group of settings, not 5"),
        (f"{OPTIMIZER}=5", f"{OPTIMIZER}: must be a group of arguments of AdamW, not 5"),
        (f"{TOKENIZERS}={{clip: null}}", f"{TOKENIZERS}.clip: must be a group of path and max_length, not None"),
        ("trainer.logger=5", "trainer.logger: unknown tracker 5"),
    ],
)
def test_what_is_no_group_is_refused(override: str, said: str) -> None:
    message = smallest_job.refusal(override)
    assert message.startswith(said) and "\n" not in message


@pytest.mark.parametrize(
    "name",
    ["reward.scorer_kwargs", "reward.reward_functions", "actor_rollout_ref.rollout.val_kwargs.pipeline", TOKENIZERS],
)
def test_a_group_that_is_empty_by_default_may_be_null(name: str) -> None:
    config = smallest_job.load(f"{name}=null")
    assert OmegaConf.select(config, name) == {} and config == smallest_job.load()
