"""PURE: numbers of the reward, and the parts of `reward.reward_functions`, checked when the settings are loaded."""

from __future__ import annotations

import math
from collections.abc import Iterator

from omegaconf import DictConfig

from verl_omni.reward_loop.part_settings import part_problems


def find_problems(reward: DictConfig) -> Iterator[str]:
    """What is wrong, a line for each setting."""
    if not isinstance(reward.batch_size, int) or reward.batch_size < 1:
        yield f"reward.batch_size: must be an integer of at least 1, not {reward.batch_size}"
    limits = {"deadline_seconds": reward, "reward_model.deadline_seconds": reward.reward_model}
    for name, group in limits.items():
        seconds = group.deadline_seconds
        if seconds is None or not 0 < seconds < math.inf:
            yield f"reward.{name}: must be a positive number of seconds, not {seconds}"
    for key, part in reward.reward_functions.items():
        yield from part_problems(key, part)
