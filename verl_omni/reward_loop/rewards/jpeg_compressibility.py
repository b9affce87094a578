"""Scorer `jpeg` under its name in published recipes and in the paper (DDPO, arXiv:2305.13301)."""

from verl_omni.reward_loop.rewards.jpeg import compute_score

__all__ = ["compute_score"]
