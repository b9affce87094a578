"""PURE: whether the reward has told no two samples of a prompt apart since the run began, from its metrics.

Every advantage is 0 then, and nothing is learned: the scorer does not read the images, it fails in a way that looks
like a score, or the prompts are too hard or too easy for the model. `collapse` finds a reward that stops to vary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from verl_omni.trainer.collapse import REWARD_SPREAD, WINDOW

REASON = "RewardConstant"


@dataclass(frozen=True, slots=True)
class ConstantRewardState:
    """What the metrics up to a step say.

    Attributes:
        steps: steps that recorded the spread of rewards within prompts.
        varies: whether it was above 0 in one of them.
    """

    steps: int = 0
    varies: bool = False


def observe(state: ConstantRewardState, metrics: Mapping[str, float | None]) -> tuple[ConstantRewardState, str | None]:
    """The state after a step's metrics, and the text of a warning after `WINDOW` steps without any spread."""
    spread = metrics.get(REWARD_SPREAD)
    if spread is None or not math.isfinite(spread):
        return state, None
    state = replace(state, steps=state.steps + 1, varies=state.varies or spread > 0)
    if state.varies or state.steps != WINDOW:
        return state, None
    mean = metrics.get("reward/mean")
    return state, (
        f"In the first {WINDOW} steps, all samples of each prompt had the same reward"
        f"{'' if mean is None else f' ({mean:.3g} on average in the last of them)'}, so nothing is learned. Look at "
        "scores and images in the report, and check the scorer, and the ground truths that it compares with."
    )
