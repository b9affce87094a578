"""Rollout correction: weights and rejection of samples by the difference between the engine's policy and the trainer's.

Truncated importance sampling and rejection sampling with verl's names
(`verl.trainer.config.algorithm.RolloutCorrectionConfig`, `verl.trainer.ppo.rollout_corr_helper`).
"""

import torch
from torch import Tensor

from verl_omni.algos.rejection_settings import Criterion


def weights(trainer: Tensor, engine: Tensor, *, threshold: float) -> Tensor:
    """Importance weights min(exp(sum over t of trainer - engine), threshold), [B], without gradient.

    Args:
        trainer, engine: log-probabilities before the update, [B, T], of the steps that a weight is for: all of a sample
            (`sequence`), or one (`token`).
    """
    return torch.exp((trainer - engine).detach().sum(1)).clamp(max=threshold)


def kept(trainer: Tensor, engine: Tensor, criterion: Criterion) -> Tensor:
    """Mask of the steps that are trained on, bool [B, T]; one value per sample unless the criterion is per step.

    With the log-ratio r = trainer - engine, the estimators of the KL divergence of one step are k1 = -r, k2 = r^2 / 2
    and k3 = exp(r) - 1 - r. A step, or the sum, mean or maximum over the steps of a sample, is kept if its estimate is
    at most the upper limit; k1 is between the logarithms of both limits.

    Args:
        trainer, engine: log-probabilities before the update, [B, T], of all steps of the samples.
    """
    ratio = (trainer - engine).detach()
    estimate = {"k1": -ratio, "k2": ratio**2 / 2, "k3": ratio.exp() - 1 - ratio}[criterion.estimator]
    match criterion.over:
        case "seq_sum":
            estimate = estimate.sum(1, keepdim=True)
        case "seq_mean":
            estimate = estimate.mean(1, keepdim=True)
        case "seq_max":
            estimate = estimate.amax(1, keepdim=True)
        case _:  # token
            pass
    return ((estimate >= criterion.lowest) & (estimate <= criterion.highest)).expand_as(ratio)
