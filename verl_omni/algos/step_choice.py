"""Choice of the recorded steps that a sample is trained on (DanceGRPO, arXiv:2505.07818).

DanceGRPO trains each sample on a random subset of its denoising steps, `timestep_fraction` of them, drawn anew in every
training step. Its code rounds down, which can leave none; here the number is rounded up.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def count(steps: int, fraction: float) -> int:
    """Number of chosen steps: `fraction` of `steps`, rounded up, with `fraction` in (0, 1]."""
    return math.ceil(fraction * steps - 1e-9)  # 0.7 * 10 is a little more than 7


def choose(seeds: Tensor, steps: int, fraction: float) -> Tensor:
    """Places of the chosen steps of each row, all different, int64 [B, count] on the CPU.

    The choice of a row depends on its seed alone, not on how a batch is split.

    Args:
        seeds: int64 [B], not negative.
        steps: recorded steps of a sample.
    """
    number = count(steps, fraction)
    orders = [torch.randperm(steps, generator=torch.Generator().manual_seed(seed)) for seed in seeds.tolist()]
    return torch.stack(orders)[:, :number]
