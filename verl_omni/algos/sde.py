"""SDE step of a flow-matching model, and its transition density.

Symbols: x the latent at noise level sigma, v the model's velocity, sigma' < sigma the next level,
dt = sigma' - sigma < 0, a the noise level. Noise levels are [B]; x, v are [B, ...]; all float32.

Sources: `sde` Flow-GRPO (arXiv:2505.05470, eq. 8-9); `cps` coefficients-preserving sampling
(arXiv:2509.05952); `dance_sde` DanceGRPO (arXiv:2505.07818).
"""

import math

import torch
from torch import Tensor

from verl_omni.settings_schema.declarations import SDE_TYPES

# A level nearer to 1 is 1: a scheduler that shifts it, such as by 1.43, rounds it to 1 - 2^-24 or 1 - 2^-23, and
# diffusers' UniPC begins at 1 - 1e-6, for a logarithm of its solver.
ROUNDED_ONE = 1 - 1e-5


def moments(
    kind: str, x: Tensor, v: Tensor, *, sigma: Tensor, sigma_next: Tensor, sigma_max: Tensor, noise_level: float
) -> tuple[Tensor, Tensor]:
    """Mean [B, ...] and standard deviation [B, 1, ...] of the next latent.

    Args:
        sigma_max: second noise level of the schedule; replaces sigma = 1, where sigma / (1 - sigma) is undefined, also
            where rounding made it a little smaller.

    Raises:
        ValueError: `kind` is unknown, or a tensor is not float32.
    """
    if any(t.dtype != torch.float32 for t in (x, v, sigma, sigma_next, sigma_max)):
        raise ValueError("an SDE step needs float32: its log-probabilities are compared at 1e-4")
    s, s1, top = (_spread(level, x) for level in (sigma, sigma_next, sigma_max))
    dt = s1 - s
    match kind:
        case "sde":
            g = noise_level * torch.sqrt(s / (1 - torch.where(s > ROUNDED_ONE, top, s)))
            mean = x * (1 + g**2 * dt / (2 * s)) + v * (1 + g**2 * (1 - s) / (2 * s)) * dt
            return mean, g * torch.sqrt(-dt)
        case "cps":
            std = s1 * math.sin(noise_level * math.pi / 2)
            clean = x - s * v
            noise = x + v * (1 - s)
            return clean * (1 - s1) + noise * torch.sqrt((s1**2 - std**2).clamp(min=0)), std
        case "dance_sde":
            score = -(x - (x - s * v) * (1 - s)) / s**2
            mean = x + dt * v - 0.5 * noise_level**2 * score * dt
            return mean, (noise_level * torch.sqrt(-dt)).expand_as(s)
        case _:
            raise ValueError(f"Unknown sde_type {kind!r}; one of {SDE_TYPES}")


def diffusion(std: Tensor, *, sigma: Tensor, sigma_next: Tensor) -> Tensor:
    """Diffusion g of an `sde` step whose standard deviation is g sqrt(-dt), both [B, 1, ...]."""
    return std / torch.sqrt(_spread(sigma, std) - _spread(sigma_next, std))


def log_prob(kind: str, x_next: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Log-density of `x_next`, mean over all non-batch dimensions, [B].

    `cps` omits normalization and variance, as its authors do: the variance does not depend on the policy, and dividing
    by it would let the late steps, which have almost no noise, dominate.
    """
    squared = (x_next - mean) ** 2
    if kind == "cps":
        return -squared.flatten(1).mean(1)
    density = -squared / (2 * std**2) - torch.log(std) - 0.5 * math.log(2 * math.pi)
    return density.flatten(1).mean(1)


def velocity_error_effect(
    kind: str, squared_error: Tensor, *, sigma: Tensor, sigma_next: Tensor, sigma_max: Tensor, noise_level: float
) -> Tensor:
    """Expected change of `log_prob` if the velocity has an error that does not depend on the noise of the step, [B].

    At most 0: the mean of the next latent is linear in the velocity, and the square of its error adds to the noise's.

    Args:
        squared_error: mean square of the error over the elements of the velocity, float32 [B].
    """
    zero = torch.zeros_like(sigma).unsqueeze(1)
    weight, std = moments(
        kind, zero, zero + 1, sigma=sigma, sigma_next=sigma_next, sigma_max=sigma_max, noise_level=noise_level
    )
    error = weight * squared_error.sqrt().unsqueeze(1)
    return log_prob(kind, error, zero, std) - log_prob(kind, zero, zero, std)


def _spread(level: Tensor, like: Tensor) -> Tensor:
    """[B] -> [B, 1, ...], broadcastable to `like`."""
    return level.view(-1, *([1] * (like.ndim - 1)))
