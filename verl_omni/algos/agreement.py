"""Agreement check: log-probabilities and velocities of the same steps, the engine's and the trainer's.

A velocity is compared through random projections of it, whose number does not depend on its resolution. With signs
s_i = +-1 that are fixed by the place i of an element, projection j of v in R^d is y_j, the sum of s_i v_i over all i
with i mod K = j. So E |y|^2 = |v|^2 over the signs, and the variance of |y|^2 is at most 2 |v|^4 / K where each
projection has the same share of |v|^2 (count sketch, Charikar et al. 2002). Projections are linear: projecting a
difference of velocities gives the difference of their projections, and a velocity that is off by a factor 1 + e gives
exactly e.

Rounding to bfloat16 changes a velocity by 1% of its size or more (by 8% with depth and guidance), but in a random
direction: its size changes by about this share divided by the square root of the number of elements. So sizes
distinguish an engine that is off by a factor from one that rounds. They are recorded exactly, because the sizes of the
projections differ by 1% / sqrt(K).
"""

import math

import torch
from torch import Tensor

PROJECTIONS = 32  # |y| differs from |v| by about 1 / sqrt(2 K) = 12%
# Mean relative difference of velocities above which a run stops, by the coarser dtype of engine and trainer; with the
# latter not below `rounding_limit`.
VELOCITY_TOLERANCES = {torch.float32: 1e-3, torch.bfloat16: 5e-2}
# The limit for the mean relative difference of sizes is this share of the tolerance, at any depth and guidance.
SIZE_SHARE = 0.1
# In bfloat16, a pass through L >= 12 layers of Wan, Qwen-Image or Stable Diffusion 3 with random weights differs from
# one in float32 by 0.002 to 0.004 sqrt(L) (tests/ml/algos/test_rounding_limit.py).
ROUNDING_OF_LAYERS = 0.004


class EngineMismatch(RuntimeError):
    """Engine and trainer disagree about the same steps, so the gradient would be wrong."""


class LogProbMismatch(EngineMismatch):
    """Engine and trainer disagree about log-probabilities, so the likelihood ratios would be wrong."""


class VelocityMismatch(EngineMismatch):
    """Engine and trainer disagree about velocities: they do not compute the same model."""


def velocity_projections(velocity: Tensor) -> Tensor:
    """Projections of each velocity, and last its norm, float32 [B, K + 1].

    Args:
        velocity: [B, ...]. The signs depend on the order of a row's elements alone: on no batch, device or version of a
            random generator.
    """
    rows = velocity.flatten(1).float()
    signed = torch.nn.functional.pad(rows * _signs(rows.shape[1], rows.device), (0, -rows.shape[1] % PROJECTIONS))
    return torch.cat([signed.unflatten(1, (-1, PROJECTIONS)).sum(1), rows.norm(dim=1, keepdim=True)], 1)


def _signs(count: int, device: torch.device) -> Tensor:
    """A sign for each place, float32 [count]: a bit of its hash, with factors below 2^31 so that nothing overflows."""
    hashed = torch.arange(1, count + 1, device=device, dtype=torch.int64)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x2C1B3C6D), (13, 0x297A2D39)):
        hashed = ((hashed ^ (hashed >> shift)) * factor) & 0xFFFFFFFF
    return ((hashed >> 16 & 1) * 2 - 1).float()


def velocity_difference(trainer: Tensor, engine: Tensor) -> Tensor:
    """|v_trainer - v_engine| / |v_engine| of each row, [B], from `velocity_projections`; 0 where both are 0."""
    return _relative((trainer - engine)[:, :PROJECTIONS].norm(dim=1), engine[:, :PROJECTIONS].norm(dim=1))


def size_difference(trainer: Tensor, engine: Tensor) -> Tensor:
    """|v_trainer| / |v_engine| - 1 of each row, [B], from `velocity_projections`; 0 where both are 0."""
    return _relative((trainer - engine)[:, -1], engine[:, -1])


def squared_difference(trainer: Tensor, engine: Tensor) -> Tensor:
    """Unbiased estimate of |v_trainer - v_engine|^2 / |v_engine|^2 of each row, [B], from `velocity_projections`."""
    return _relative((trainer - engine)[:, :PROJECTIONS].pow(2).sum(1), engine[:, -1] ** 2)


class RoundingErrors:
    """Mean `squared_difference` at each timestep, measured where engine and trainer have the same weights.

    The dtypes of both determine it, so it is also the part of rounding in the difference between a policy and the older
    one that generated a sample, which cannot be measured.
    """

    def __init__(self) -> None:
        self._means: dict[float, float] = {}

    def measure(self, timesteps: Tensor, squared: Tensor) -> None:
        """Replace the means of these timesteps.

        Args:
            timesteps, squared: one value for each row of all ranks, [N].
        """
        for timestep in timesteps.unique().tolist():
            self._means[timestep] = squared[timesteps == timestep].mean().item()

    def at(self, timesteps: Tensor) -> Tensor:
        """The errors at timesteps [B], float32 [B]; those not measured have the mean of the others, or 0."""
        others = sum(self._means.values()) / len(self._means) if self._means else 0.0
        return timesteps.new_tensor([self._means.get(timestep, others) for timestep in timesteps.tolist()])


def _relative(difference: Tensor, size: Tensor) -> Tensor:
    return torch.where(difference == 0, difference, difference / size)


def rounding_limit(layers: int, guidance_scale: float) -> float:
    """Relative difference of velocities that rounding to bfloat16 may cause, by depth and guidance.

    Errors of layers add up as independent ones do. Guidance s extrapolates two velocities that differ little, to
    u + s (c - u) = s c - (s - 1) u, and multiplies their errors by up to sqrt(s^2 + (s - 1)^2).
    """
    return ROUNDING_OF_LAYERS * math.sqrt(layers) * math.hypot(guidance_scale, guidance_scale - 1)


def check_velocities(
    difference: Tensor, sizes: Tensor, tolerance: float, size_tolerance: float | None = None
) -> dict[str, float]:
    """Statistics of `velocity_difference` and `size_difference`, any shape.

    Args:
        size_tolerance: upper limit of the mean difference of sizes; None: `SIZE_SHARE` of `tolerance`.

    Raises:
        VelocityMismatch: the mean difference exceeds `tolerance`, the mean difference of sizes exceeds
            `size_tolerance`, or one of them is NaN.
    """
    if size_tolerance is None:
        size_tolerance = SIZE_SHARE * tolerance
    metrics = {
        "rollout_corr/velocity_rel_diff": difference.mean().item(),
        "rollout_corr/max_velocity_rel_diff": difference.max().item(),
        "rollout_corr/velocity_size_diff": sizes.mean().item(),
    }
    if not metrics["rollout_corr/velocity_rel_diff"] <= tolerance:
        raise VelocityMismatch(
            f"velocities of engine and trainer differ by {metrics['rollout_corr/velocity_rel_diff']:.3g} of their size "
            f"on average, more than {tolerance:g} (trainer.max_velocity_difference): do both use the same weights, "
            "guidance, timesteps, prompt embeddings and dtype?"
        )
    size = metrics["rollout_corr/velocity_size_diff"]
    if not abs(size) <= size_tolerance:
        raise VelocityMismatch(
            f"the trainer's velocities are {abs(size):.3g} {'larger' if size > 0 else 'smaller'} than the engine's "
            f"on average, more than {size_tolerance:g} ({SIZE_SHARE:g} of trainer.max_velocity_difference, if that is "
            "given); rounding does not do that: do both use the same weights and guidance?"
        )
    return metrics


def check_log_probs(difference: Tensor, tolerance: float) -> dict[str, float]:
    """Statistics of `difference`, the trainer's log-probabilities minus the engine's, any shape.

    `kl` and `k3_kl` are estimates of KL(engine || trainer), the second of which is never negative; verl's names.

    Raises:
        LogProbMismatch: the mean absolute difference exceeds `tolerance` or is NaN.
    """
    ratio = difference.exp()
    metrics = {
        "rollout_corr/mean_abs_diff": difference.abs().mean().item(),
        "rollout_corr/max_abs_diff": difference.abs().max().item(),
        "rollout_corr/ratio_mean": ratio.mean().item(),
        "rollout_corr/ratio_max": ratio.max().item(),
        "rollout_corr/kl": -difference.mean().item(),
        "rollout_corr/k3_kl": (ratio - 1 - difference).mean().item(),
    }
    if not metrics["rollout_corr/mean_abs_diff"] <= tolerance:
        raise LogProbMismatch(
            f"log-probabilities of engine and trainer differ by {metrics['rollout_corr/mean_abs_diff']:.3g} on average,"
            f" more than trainer.max_log_prob_difference={tolerance:g}: do both use the same weights and settings?"
        )
    return metrics
