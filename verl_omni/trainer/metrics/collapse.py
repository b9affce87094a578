"""PURE: whether a run's samples have collapsed, from its metrics.

Two signs. The images of different held-out prompts become alike: their diversity falls below a share of the first
evaluation's. Or the samples of one prompt all get the same reward: the spread within prompts falls below a share of the
run's largest. A saturated reward has the second sign too, so that sign is ignored while the images of the last
evaluation are diverse.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from verl_omni.trainer.metrics.recent_averages import WINDOW

REWARD_SPREAD = "diversity/reward_std_within_prompt"
IMAGES = "diversity/images"
REASON = "SamplesCollapsed"
# share of the first evaluation's diversity
IMAGES_COLLAPSED = 0.25
IMAGES_DIVERSE = 0.5
# share of the largest averaged spread
REWARDS_COLLAPSED = 0.05
REWARDS_RECOVERED = 0.1
ADVICE = "Lower the learning rate, or hold the policy to the base model (actor.use_kl_loss, kl_loss_coef)."


@dataclass(frozen=True, slots=True)
class CollapseState:
    """Whether a run has collapsed, from its metrics up to a step.

    Attributes:
        collapsed: whether the last verdict was a collapse.
        first, last: diversity of the held-out images at the first and the last evaluation; None before one.
        spreads: reward spread within prompts in the last `WINDOW` steps. largest: largest average over `WINDOW` steps.
    """

    collapsed: bool = False
    first: float | None = None
    last: float | None = None
    spreads: tuple[float, ...] = ()
    largest: float = 0.0

    @property
    def images_share(self) -> float | None:
        """Diversity of the last evaluation's images, as a share of the first one's."""
        return self.last / self.first if self.last is not None and self.first else None

    @property
    def spread(self) -> float | None:
        """Average of the last `WINDOW` steps' spreads within prompts; None before that many steps."""
        return sum(self.spreads) / WINDOW if len(self.spreads) == WINDOW else None

    @property
    def rewards_share(self) -> float | None:
        """`spread`, as a share of the run's largest."""
        return self.spread / self.largest if self.spread is not None and self.largest else None


def observe(state: CollapseState, metrics: Mapping[str, float | None]) -> tuple[CollapseState, str | None]:
    """The state after a step's metrics, and the text of a warning where a collapse begins with it."""
    state = _measured(state, metrics)
    collapsed = _is_collapsed(state)
    message = _message(state) if collapsed and not state.collapsed else None
    return replace(state, collapsed=collapsed), message


def _measured(state: CollapseState, metrics: Mapping[str, float | None]) -> CollapseState:
    diversity = metrics.get(IMAGES)
    spread = metrics.get(REWARD_SPREAD)
    if diversity is not None and math.isfinite(diversity):
        state = replace(state, first=diversity if state.first is None else state.first, last=diversity)
    if spread is not None and math.isfinite(spread):
        state = replace(state, spreads=(*state.spreads, spread)[-WINDOW:])
        state = replace(state, largest=max(state.largest, state.spread or 0.0))
    return state


def _is_collapsed(state: CollapseState) -> bool:
    """Between a collapse and a recovery the last verdict stays."""
    images = state.images_share
    rewards = state.rewards_share
    if images is not None and images >= IMAGES_DIVERSE:
        return False
    if images is not None and images < IMAGES_COLLAPSED:
        return True
    if rewards is not None and rewards < REWARDS_COLLAPSED:
        return True
    recovered = rewards is None or rewards >= REWARDS_RECOVERED
    return state.collapsed and not (images is None and recovered)


def _message(state: CollapseState) -> str:
    if state.images_share is not None and state.images_share < IMAGES_COLLAPSED:
        return (
            f"The images of different held-out prompts have become alike: their diversity (mean pixel standard "
            f"deviation across prompts) is {state.last:.3g}, {state.images_share:.0%} of the first evaluation's "
            f"{state.first:.3g}. {ADVICE}"
        )
    return (
        f"The samples of a prompt get nearly the same reward: the standard deviation within a prompt is "
        f"{state.spread:.3g}, {state.rewards_share:.0%} of the largest in this run, {state.largest:.3g}. The samples "
        f"have collapsed, or the reward is saturated; either way there is nothing left to learn from. {ADVICE}"
    )
