"""PURE: whether a run optimizes its reward at the expense of a held-out scorer, from the metrics of its evaluations.

A learned reward is a proxy. Optimized for too long, it still rises while what it stands for falls, usually after both
have risen (Gao et al., arXiv:2210.10760, figure 1). So each evaluation is compared with the one in which the held-out
scorer was best. Both are on the same prompts and seeds, which makes the standard errors an upper bound of the noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

REASON = "RewardOveroptimized"
SIGNIFICANT = 2.0  # standard errors of the difference of two means


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean over the samples of an evaluation, and its standard error."""

    value: float
    error: float

    def exceeds(self, other: Mean) -> bool:
        """Whether it is larger, by more than noise."""
        return self.value - other.value > SIGNIFICANT * math.hypot(self.error, other.error)


@dataclass(frozen=True, slots=True)
class HeldOutState:
    """Evaluations of one held-out scorer.

    Attributes:
        step, score, reward: in the evaluation in which the scorer was best.
        falls: the last evaluations in a row in which the scorer was lower, and the trained reward higher, than then.
    """

    step: int = 0
    score: Mean | None = None
    reward: Mean | None = None
    falls: int = 0


def observe(state: HeldOutState, scorer: str, metrics: Mapping[str, float | None]) -> tuple[HeldOutState, str | None]:
    """The state after the metrics of a step, and the text of a warning at the first fall in a row.

    Args:
        scorer: its key in `reward.reward_functions`. Steps without its standard error, which needs two samples, or
            without the reward's, do not count.
    """
    score = _mean(metrics, f"val/reward/{scorer}")
    reward = _mean(metrics, "val/reward")
    if score is None or reward is None:
        return state, None
    if state.score is None or state.reward is None or score.value > state.score.value:
        return HeldOutState(int(metrics.get("step") or 0), score, reward), None
    if not (state.score.exceeds(score) and reward.exceeds(state.reward)):
        return replace(state, falls=0), None
    text = (
        f"Since step {state.step}, the trained reward of the held-out prompts has risen from {state.reward.value:.3g} "
        f"to {reward.value:.3g}, while the held-out scorer {scorer} has fallen from {state.score.value:.3g} to "
        f"{score.value:.3g}: the model exploits the reward. Look at the images in the report; a checkpoint near step "
        f"{state.step} may be the best one. Hold the policy to the base model (actor.use_kl_loss, kl_loss_coef), or "
        "train on the sum of several scorers."
    )
    return replace(state, falls=state.falls + 1), None if state.falls else text


def _mean(metrics: Mapping[str, float | None], name: str) -> Mean | None:
    value = metrics.get(f"{name}/mean")
    error = metrics.get(f"{name}/stderr")
    if value is None or error is None or not math.isfinite(value) or not math.isfinite(error):
        return None
    return Mean(value, error)
