"""The forward process of flow matching: from a clean latent to a noisy one, without a sampler.

Symbols: x0 the clean latent, e standard normal noise, t in [0, 1) the noise level,
x_t = (1 - t) x0 + t e, and v = e - x0 what a model should predict for x_t (rectified flow, arXiv:2209.03003).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

TIMESTEPS = 1000.0  # the schedulers of diffusers give a model 1000 t


def draws(seeds: Tensor, count: int, shape: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Times [B, count] and noise [B, count, *shape], float32, on the host.

    A row's draws depend on its seed alone, so they are the same however a batch is cut. Its times lie one in each of
    `count` equal parts of [0, 1): they cover the noise levels better than independent ones, and their mean is the same.

    Args:
        seeds: int64 [B], not negative. Torch's generator of the host takes 32 bits of a seed: those that differ by a
            multiple of 2^32 draw the same.
    """
    times, noise = [], []
    for seed in seeds.tolist():
        generator = torch.Generator().manual_seed(seed)
        times.append((torch.arange(count) + torch.rand(count, generator=generator)) / count)
        noise.append(torch.randn(count, *shape, generator=generator))
    return torch.stack(times), torch.stack(noise)


def noised(clean: Tensor, noise: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
    """x_t and v, both [B, ...], for clean latents and noise [B, ...] at `time` [B]."""
    t = time.view(-1, *([1] * (clean.ndim - 1)))
    return (1 - t) * clean + t * noise, noise - clean


def error(velocity: Tensor, target: Tensor) -> Tensor:
    """Squared difference, mean over all non-batch dimensions, [B]."""
    return ((velocity - target) ** 2).flatten(1).mean(1)
