"""Reward managers without Ray, and the types of the fixtures that they need."""

from collections.abc import Callable
from typing import Any

from omegaconf import DictConfig
from verl import DataProto

from verl_omni.reward_loop.reward_manager import MultiVisualRewardManager, VisualRewardManager

Settings = Callable[..., DictConfig]
Sample = Callable[..., DataProto]


def visual(config: DictConfig, compute_score: Any = None, **more: Any) -> VisualRewardManager:
    return VisualRewardManager(config=config, tokenizer=None, compute_score=compute_score, **more)


def multi(config: DictConfig) -> MultiVisualRewardManager:
    return MultiVisualRewardManager(config=config, tokenizer=None, compute_score=None)
