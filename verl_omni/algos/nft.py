"""DiffusionNFT: what is better than the old policy is fitted, what is worse is fled from (arXiv:2509.16117).

There is no likelihood and no sampler in it: samples may be drawn in any way from the old policy, and the loss is that
of flow matching at random noise levels of the clean samples.
"""

from __future__ import annotations

from torch import Tensor

from verl_omni.algos import flow_matching


def optimality(advantages: Tensor, clip: float) -> Tensor:
    """Probability r in [0, 1] that a sample is a good one (section 3.3): 1/2 + 1/2 clip(A / `clip`, -1, 1).

    Args:
        advantages: the rewards [B], centred over their group and divided by their spread.
        clip: the advantage from which on a sample is certainly good.
    """
    return 0.5 + 0.5 * (advantages / clip).clamp(-1, 1)


def loss(velocity: Tensor, old_velocity: Tensor, target: Tensor, good: Tensor, *, beta: float) -> Tensor:
    """r |v+ - v|^2 + (1 - r) |v- - v|^2 of each row (theorem 3.2), [B].

    v+ = (1 - beta) v_old + beta v_theta is the implicit positive policy, v- = (1 + beta) v_old - beta v_theta the
    negative one; both are v_old where v_theta is. The norm is the mean over the latent's elements, and every noise
    level weighs the same.

    Args:
        velocity: v_theta, old_velocity: v_old, target: v, all [B, ...].
        good: r, [B].
    """
    positive = (1 - beta) * old_velocity + beta * velocity
    negative = (1 + beta) * old_velocity - beta * velocity
    return good * flow_matching.error(positive, target) + (1 - good) * flow_matching.error(negative, target)


def old_decay(updates: int, *, rate: float, most: float) -> float:
    """How much of the old policy stays after an update: min(rate x updates before it, most).

    The first update replaces it whole; later ones ever less of it, which keeps samples from changing too fast.
    """
    return min(rate * updates, most)
