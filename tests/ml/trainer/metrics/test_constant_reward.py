"""A run whose reward tells no samples of a prompt apart says so once, after a few steps."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from tests.ml.trainer.metrics import observed_courses
from verl_omni.trainer.metrics import step_metrics
from verl_omni.trainer.metrics.run_warnings import RewardState, observe_reward

GROUPS = [f"prompt {number // 6}" for number in range(12)]
NONE: dict[str, float | None] = {}


warnings = partial(observed_courses.warnings, RewardState(), observe_reward)


def line(scores: list[float]) -> dict[str, float | None]:
    """What a step records of the rewards of two prompts with six samples each."""
    rewards = torch.tensor(scores)
    return {**step_metrics.rewards(rewards, {}), **step_metrics.reward_spread(rewards, GROUPS)}


@pytest.mark.parametrize("rewards", [(0.0, 0.0), (0.1, 0.7), (1e6 + 0.3, -1e-8), (0.123456789,) * 2], ids=str)
def test_a_reward_that_never_varies_is_found_once(rewards: tuple[float, float]) -> None:
    """Also if prompts differ, whatever the numbers are."""
    same = line([rewards[0]] * 6 + [rewards[1]] * 6)
    ((place, message),) = warnings([same] * 20)
    assert place == 4
    assert message.startswith("In the first 5 steps, all samples of each prompt had the same reward (")


def test_one_sample_that_differs_in_one_of_the_first_steps_is_enough() -> None:
    same = line([0.0] * 12)
    varied = line([0.0] * 11 + [1.0])
    assert warnings([same] * 4 + [varied] + [same] * 20) == []
    assert warnings([varied, *[same] * 20]) == [], "that is a collapse"
