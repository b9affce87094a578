"""Group-relative advantages, of one scorer (GRPO, arXiv:2402.03300) or several (GDPO, arXiv:2601.05242)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from verl_omni.algos.groups import rows_of_groups, rows_with_reward

EPSILON = 1e-4


def group_advantages(
    rewards: Tensor, groups: Sequence[str], *, normalize: bool = True, global_std: bool = True
) -> Tensor:
    """(r - mean of its group) / (std + 1e-4), float32 [B]; 0 where there is no reward.

    Args:
        rewards: [B]; NaN: the row has none, and is left out of means and standard deviations.
        groups: the prompt that each row belongs to. A group of one has advantage 0.
        normalize: divide by the standard deviation.
        global_std: divide by the standard deviation of the whole batch instead of the group's.

    Raises:
        ValueError: lengths differ, or a reward is infinite.
    """
    members = rows_of_groups(rewards, groups)
    # float64: in float32 the mean of equal rewards differs slightly from them, and the division would amplify that.
    rewards = rewards.double()
    centred = torch.zeros_like(rewards)
    spread = torch.ones_like(rewards)
    for rows in filter(None, members):
        group_rewards = rewards[rows]
        centred[rows] = group_rewards - group_rewards.mean()
        spread[rows] = group_rewards.std() if len(group_rewards) > 1 else 1.0
    if not normalize:
        return centred.float()
    return (centred / (batch_divisor(rewards) if global_std else spread + EPSILON)).float()


def batch_divisor(rewards: Tensor) -> float:
    """Standard deviation of the rewards [B] of a batch + 1e-4, in float64; of one reward 1 + 1e-4."""
    known = rewards[rows_with_reward(rewards)].double()
    return (known.std().item() if len(known) > 1 else 1.0) + EPSILON


def normalized_sum(scores: Tensor, weights: Sequence[float], groups: Sequence[str]) -> Tensor:
    """sum over scorers k of w_k (r_k - mean_k of its group) / (std_k of its group + 1e-4), float32 [B].

    So a scorer's influence depends on its weight and not on its scale. The standard deviation is the sample standard
    deviation (n - 1). A scorer that gives all samples of a group the same score adds 0 to them.

    Args:
        scores: [B, K], of each scorer; with NaN for one scorer, the row has no sum, which is NaN, and is left out of
            all means and standard deviations. weights: K numbers.
        groups: the prompt that each row belongs to.

    Raises:
        ValueError: lengths differ, or a score is infinite.
    """
    unscored = scores.isnan().any(1)
    scores = scores.masked_fill(unscored[:, None], torch.nan)
    parts = [
        weight * group_advantages(column, groups, global_std=False).double()
        for weight, column in zip(weights, scores.unbind(1), strict=True)
    ]
    return torch.stack(parts).sum(0).masked_fill(unscored, torch.nan).float()
