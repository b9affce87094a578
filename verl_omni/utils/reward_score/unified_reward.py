"""The scorer `unified_reward` at its import path in the reference."""

from verl_omni.reward_loop.rewards import unified_reward
from verl_omni.utils.reward_score.judges import with_verls_arguments

compute_score_unified_reward = with_verls_arguments(unified_reward.compute_score)
