"""GRPO: the clipped policy loss, and the KL divergence to the base model."""

from __future__ import annotations

import torch
from torch import Tensor


def clipped(
    log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor, *, clip_ratio: float, adv_clip_max: float
) -> Tensor:
    """PPO's clipped loss of each row, [B] (Flow-GRPO, arXiv:2505.05470, eq. 6).

    max(-A ratio, -A clip(ratio, 1 - c, 1 + c)) with ratio = exp(log_prob - old_log_prob) and |A| <= adv_clip_max.
    """
    advantage = advantage.clamp(-adv_clip_max, adv_clip_max)
    ratio = torch.exp(log_prob - old_log_prob)
    return torch.maximum(-advantage * ratio, -advantage * ratio.clamp(1 - clip_ratio, 1 + clip_ratio))


def kl_to_base(mean: Tensor, base_mean: Tensor, std: Tensor) -> Tensor:
    """KL divergence of two normal distributions with the same standard deviation, mean over the elements, [B].

    With the standard deviation of a step it is the KL of the transition densities. Flow-GRPO's authors divide by the
    square of the diffusion g instead, without the step size of the variance g^2 (-dt) (`train_sd3.py` of their code).
    """
    return ((mean - base_mean) ** 2 / (2 * std**2)).flatten(1).mean(1)
