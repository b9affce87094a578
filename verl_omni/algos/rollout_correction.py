"""Rollout correction: importance weights for the difference between the engine's policy and the trainer's.

Truncated importance sampling with verl's names (`verl.trainer.config.algorithm.RolloutCorrectionConfig`).
"""

from __future__ import annotations

import torch
from torch import Tensor


def weights(trainer: Tensor, engine: Tensor, *, threshold: float) -> Tensor:
    """Importance weights min(exp(sum over t of trainer - engine), threshold), [B], without gradient.

    Args:
        trainer, engine: log-probabilities before the update, [B, T], of the steps that a weight is for: all of a sample
            (`sequence`), or one (`token`).
    """
    return torch.exp((trainer - engine).detach().sum(1)).clamp(max=threshold)
