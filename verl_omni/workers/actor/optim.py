"""AdamW and its learning-rate schedule."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import nn

from verl_omni.workers.config import DiffusionOptimizerConfig


def optimizer(parameters: Iterable[nn.Parameter], config: DiffusionOptimizerConfig) -> torch.optim.AdamW:
    """AdamW over `parameters`."""
    return torch.optim.AdamW(
        list(parameters), lr=config.lr, betas=tuple(config.betas), eps=config.eps, weight_decay=config.weight_decay
    )


def scale(step: int, config: DiffusionOptimizerConfig) -> float:
    """Share of the learning rate at optimizer step `step` (from 0): linear warm-up, then constant or cosine to 0."""
    if step < config.lr_warmup_steps:
        return (step + 1) / config.lr_warmup_steps
    if config.lr_scheduler_type == "constant" or config.total_training_steps <= 0:
        return 1.0
    done = (step - config.lr_warmup_steps) / max(1, config.total_training_steps - config.lr_warmup_steps)
    return 0.5 * (1 + math.cos(math.pi * min(1.0, done)))


def scheduler(of: torch.optim.Optimizer, config: DiffusionOptimizerConfig) -> torch.optim.lr_scheduler.LambdaLR:
    """The schedule as torch keeps it, so that its state can be saved."""
    return torch.optim.lr_scheduler.LambdaLR(of, lambda step: scale(step, config))
