"""DiffusionNFT (arXiv:2509.16117): fits samples that are better than the old policy's average, and avoids worse ones.

It uses no likelihood and works with any sampler: the old policy generates the samples, and the loss is flow matching
at random noise levels of their final latents.
"""

from __future__ import annotations

from torch import Tensor

from verl_omni.algos import flow_matching


def optimality(advantages: Tensor, clip: float) -> Tensor:
    """Probability r in [0, 1] that a sample is a good one (section 3.3): 1/2 + 1/2 clip(A / `clip`, -1, 1).

    Args:
        advantages: the rewards [B], centred over their group and divided by their spread.
        clip: advantage at which r reaches 1.
    """
    return 0.5 + 0.5 * (advantages / clip).clamp(-1, 1)


def loss(velocity: Tensor, old_velocity: Tensor, target: Tensor, good: Tensor, *, beta: float) -> Tensor:
    """r |v+ - v|^2 + (1 - r) |v- - v|^2 of each row (theorem 3.2), [B].

    v+ = (1 - beta) v_old + beta v_theta is the implicit positive policy, v- = (1 + beta) v_old - beta v_theta the
    negative one. The norm is the mean over the elements of the latent; all noise levels have the same weight.

    Args:
        velocity: v_theta, old_velocity: v_old, target: v, all [B, ...].
        good: r, [B].
    """
    positive = (1 - beta) * old_velocity + beta * velocity
    negative = (1 + beta) * old_velocity - beta * velocity
    return good * flow_matching.error(positive, target) + (1 - good) * flow_matching.error(negative, target)


def old_decay(updates: int, *, rate: float, most: float) -> float:
    """Share of the old policy that an update keeps: min(rate * number of updates before it, most).

    The first update replaces the old policy; later updates replace less and less of it.
    """
    return min(rate * updates, most)
