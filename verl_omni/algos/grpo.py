"""GRPO: the clipped and the masked policy loss, the normalized ratio, KL of two steps, and which steps to train on."""

import math

import torch
from torch import Tensor


def clipped(log_ratio: Tensor, advantage: Tensor, *, clip_ratio: float, adv_clip_max: float) -> Tensor:
    """PPO's clipped loss of each row, [B] (Flow-GRPO, arXiv:2505.05470, eq. 6).

    max(-A ratio, -A clip(ratio, 1 - c, 1 + c)) with ratio = exp(log_ratio) and |A| <= adv_clip_max. Log-ratios are
    at most 20, as in verl: a ratio that overflows would make 0 * inf of the gradient of a row that is clipped.
    """
    advantage = advantage.clamp(-adv_clip_max, adv_clip_max)
    ratio = torch.exp(log_ratio.clamp(max=20))
    return torch.maximum(-advantage * ratio, -advantage * ratio.clamp(1 - clip_ratio, 1 + clip_ratio))


def normalized_log_ratio(log_ratio: Tensor, mean: Tensor, old_mean: Tensor, std: Tensor) -> Tensor:
    """RatioNorm of GRPO-Guard (arXiv:2510.22319): std (log_ratio + mean((mean - old_mean)^2) / (2 std^2)), [B].

    The log-ratio of two normal densities is below 0 on average, by the term that is added, and its spread is
    proportional to 1 / std. Normalized, it is 0 on average, and steps of all noise levels have the same clip range.

    Args:
        log_ratio: log-probability minus the old one, each the mean over the elements of the latent, [B].
        mean, old_mean: mean of the next latent under the current and the old policy, [B, ...].
        std: standard deviation of the step, [B, 1, ...]; the paper's sigma_t sqrt(-dt).
    """
    scale = std.flatten(1).mean(1)  # per element
    return scale * (log_ratio + ((mean - old_mean) ** 2).flatten(1).mean(1) / (2 * scale**2))


def masked(
    log_ratio: Tensor, advantage: Tensor, divergence: Tensor, *, threshold: float, adv_clip_max: float
) -> tuple[Tensor, Tensor]:
    """Flow-DPPO's loss of each row (arXiv:2606.11025), [B], and the mask of the rows that it excludes, bool [B].

    -A ratio with ratio = exp(log_ratio) and |A| <= adv_clip_max; 0, without gradient, where the divergence from the old
    policy exceeds the threshold and A would move the ratio further from 1: A > 0 and ratio > 1, or A < 0 and ratio < 1.

    Args:
        divergence: divergence between the step's old and current densities, [B].
    """
    advantage = advantage.clamp(-adv_clip_max, adv_clip_max)
    outward = torch.sign(advantage) * torch.sign(log_ratio) > 0
    excluded = outward & (divergence > threshold)
    ratio = torch.exp(log_ratio.masked_fill(excluded, 0))  # a ratio that overflows would make 0 * inf of its gradient
    return (-advantage * ratio).masked_fill(excluded, 0), excluded


def gaussian_kl(mean: Tensor, other_mean: Tensor, std: Tensor) -> Tensor:
    """KL divergence of two normal distributions with the same standard deviation, mean over the elements, [B].

    With the standard deviation of a step it is the KL of the transition densities. In the KL to the base model,
    Flow-GRPO's authors divide by the square of the diffusion g instead, without the step size of the variance g^2 (-dt)
    (`train_sd3.py` of their code).
    """
    return ((mean - other_mean) ** 2 / (2 * std**2)).flatten(1).mean(1)


def chosen_count(steps: int, fraction: float) -> int:
    """Number of recorded steps that a sample is trained on: `fraction` of `steps`, rounded up, `fraction` in (0, 1].

    DanceGRPO's code (arXiv:2505.07818) rounds down, which can leave none.
    """
    return math.ceil(fraction * steps - 1e-9)  # 0.7 * 10 is a little more than 7


def choose_steps(seeds: Tensor, steps: int, fraction: float) -> Tensor:
    """Places of the steps of each row that it is trained on, all different, int64 [B, chosen_count] on the CPU.

    DanceGRPO (arXiv:2505.07818) draws new steps in every training step. A row's steps depend on its seed alone, not on
    how a batch is split.

    Args:
        seeds: int64 [B], not negative.
        steps: recorded steps of a sample.
    """
    number = chosen_count(steps, fraction)
    orders = [torch.randperm(steps, generator=torch.Generator().manual_seed(seed)) for seed in seeds.tolist()]
    return torch.stack(orders)[:, :number]
