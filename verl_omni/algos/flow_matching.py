"""Forward process of flow matching: noisy latents and velocity targets from clean latents.

Symbols: x0 the clean latent, e standard normal noise, t in [0, 1) the noise level, x_t = (1 - t) x0 + t e, and
v = e - x0 the target of the predicted velocity (rectified flow, arXiv:2209.03003).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

TIMESTEPS = 1000.0  # diffusers' schedulers pass 1000 t to a model


def draws(seeds: Tensor, count: int, shape: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Times [B, count] and noise [B, count, *shape], float32, on the CPU.

    The draws of a row depend on its seed alone, not on how a batch is split. Its times are stratified: one in each of
    `count` equal parts of [0, 1), which covers the noise levels better than independent draws with the same mean.

    Args:
        seeds: int64 [B], not negative. Torch's CPU generator uses 32 bits of a seed: seeds that differ by a multiple of
            2^32 give the same draws.
    """
    times = []
    noise = []
    for seed in seeds.tolist():
        generator = torch.Generator().manual_seed(seed)
        times.append((torch.arange(count) + torch.rand(count, generator=generator)) / count)
        noise.append(torch.randn(count, *shape, generator=generator))
    return torch.stack(times), torch.stack(noise)


def add_noise(clean: Tensor, noise: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
    """x_t and v, both [B, ...], for clean latents and noise [B, ...] at `time` [B]."""
    t = time.view(-1, *([1] * (clean.ndim - 1)))
    return (1 - t) * clean + t * noise, noise - clean


def error(velocity: Tensor, target: Tensor) -> Tensor:
    """Mean squared error over all non-batch dimensions, [B]."""
    return ((velocity - target) ** 2).flatten(1).mean(1)
