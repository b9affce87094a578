"""Agreement check: the engine's and the trainer's log-probabilities of the same steps."""

from __future__ import annotations

from torch import Tensor


class LogProbMismatch(RuntimeError):
    """Engine and trainer disagree about log-probabilities, so the likelihood ratios would be wrong."""


def check_log_probs(difference: Tensor, tolerance: float) -> dict[str, float]:
    """Statistics of `difference`, the trainer's log-probabilities minus the engine's, any shape.

    `kl` and `k3_kl` are estimates of KL(engine || trainer), the second of which is never negative; verl's names.

    Raises:
        LogProbMismatch: the mean absolute difference exceeds `tolerance` or is NaN.
    """
    ratio = difference.exp()
    found = {
        "rollout_corr/mean_abs_diff": difference.abs().mean().item(),
        "rollout_corr/max_abs_diff": difference.abs().max().item(),
        "rollout_corr/ratio_mean": ratio.mean().item(),
        "rollout_corr/ratio_max": ratio.max().item(),
        "rollout_corr/kl": -difference.mean().item(),
        "rollout_corr/k3_kl": (ratio - 1 - difference).mean().item(),
    }
    if not found["rollout_corr/mean_abs_diff"] <= tolerance:
        raise LogProbMismatch(
            f"log-probabilities of engine and trainer differ by {found['rollout_corr/mean_abs_diff']:.3g} on average, "
            f"more than trainer.max_log_prob_difference={tolerance:g}: do both use the same weights and settings?"
        )
    return found
