"""DiffusionNFT (arXiv:2509.16117): fits samples that are better than the old policy's average, and avoids worse ones.

It uses no likelihood and works with any sampler: the old policy generates the samples, and the loss is flow matching
at random noise levels of their final latents.
"""

from torch import Tensor


def optimality(advantages: Tensor, clip: float) -> Tensor:
    """Probability r in [0, 1] that a sample is a good one (section 3.3): 1/2 + 1/2 clip(A / `clip`, -1, 1).

    Args:
        advantages: the rewards [B], centred over their group and divided by their spread.
        clip: advantage at which r reaches 1.
    """
    return 0.5 + 0.5 * (advantages / clip).clamp(-1, 1)


def loss(
    velocity: Tensor, old_velocity: Tensor, target: Tensor, good: Tensor, time: Tensor, *, beta: float, least: float
) -> Tensor:
    """(r E(v+) + (1 - r) E(v-)) / beta of each row (theorem 3.2), [B].

    v+ = (1 - beta) v_old + beta v_theta is the implicit positive policy, v- = (1 + beta) v_old - beta v_theta the
    negative one, and E their error (`weighted_error`). The gradient of E at v_theta = v_old is proportional to beta:
    divided by it, beta says how far the implicit policies are from the old one, and not how fast they are learned.

    Args:
        velocity: v_theta, old_velocity: v_old, target: v, all [B, ...].
        good: r, [B].
        time: noise levels, [B].
        beta: distance of the implicit policies from the old one, relative to the trained policy's.
        least: see `weighted_error`.
    """
    positive = weighted_error((1 - beta) * old_velocity + beta * velocity, target, time, least)
    negative = weighted_error((1 + beta) * old_velocity - beta * velocity, target, time, least)
    return (good * positive + (1 - good) * negative) / beta


def weighted_error(velocity: Tensor, target: Tensor, time: Tensor, least: float) -> Tensor:
    """mean(e^2) / max(mean |e|, least), [B], with e = t (velocity - target), the error of the predicted clean latents.

    The divisor has no gradient (section 3.3, adaptive weights): the gradient's size does not depend on the noise level
    or on how well the model fits, so that no part of the noise levels drowns the others.
    """
    error = time.view(-1, *([1] * (velocity.ndim - 1))) * (velocity - target)
    size = error.detach().abs().flatten(1).mean(1).clamp(min=least)
    return (error**2).flatten(1).mean(1) / size


def old_decay(updates: int, *, rate: float, most: float, delay: int = 0) -> float:
    """Share of the old policy that an update keeps: min(rate * number of updates before it, most).

    The first update replaces the old policy; later updates replace less and less of it.

    Args:
        delay: updates that are not counted.
    """
    return min(rate * max(updates - delay, 0), most)
