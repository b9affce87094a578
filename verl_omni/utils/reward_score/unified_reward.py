"""The scorer `unified_reward` at its import path in the reference."""

from verl_omni.reward_loop.rewards.unified_reward import compute_score as compute_score_unified_reward

__all__ = ["compute_score_unified_reward"]
