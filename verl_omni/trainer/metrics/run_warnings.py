"""Warnings about what a run learns, from its metrics.

A constant reward, one that is exploited, collapsed samples, images that degrade, a diverging policy, and a clip range
that excludes one sign of the advantage.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from verl_omni.reward_loop.scorer_results import ScoringFailure
from verl_omni.trainer.metrics import collapse, degradation, overoptimization, policy_drift, step_metrics
from verl_omni.trainer.metrics.recent_averages import WINDOW
from verl_omni.trainer.run.run_folder import RunFolder

CONSTANT_REWARD = "RewardConstant"
ONE_SIDED = "ClippingOneSided"
ONE_SIDED_BY = 0.2  # difference of the shares of positive and negative advantages; of 100 rows each, 3 standard errors
NOT_SCORED = "SamplesNotScored"
# By whether the sample has a reward without the score.
CONSEQUENCES = {
    False: "A sample without a score is not trained on; reward/unscored counts them",
    True: "Such a sample has its reward without this score; means of the scorer are over the others",
}
NOT_FINITE = "MetricNotFinite"


@dataclass(frozen=True, slots=True)
class RewardState:
    """Whether the reward has told two samples of a prompt apart since the run began.

    If not, every advantage is 0 and nothing is learned: the scorer does not read the images, it fails in a way that
    looks like a score, or the prompts are too hard or too easy for the model. `collapse` finds a reward that ceases to
    vary.

    Attributes:
        steps: steps that recorded the spread of rewards within prompts.
        varies: whether it was above 0 in one of them.
    """

    steps: int = 0
    varies: bool = False


def observe_reward(state: RewardState, metrics: Mapping[str, float | None]) -> tuple[RewardState, str | None]:
    """PURE: the state after a step, and the text of a warning after `WINDOW` steps without any spread."""
    spread = metrics.get(collapse.REWARD_SPREAD)
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


def clipping_text(metrics: Mapping[str, float | None]) -> str | None:
    """PURE: the text of a warning if a step clips mainly one sign of the advantage before anything was learned.

    Engine and trainer had the same weights then, so it is not the policy that moved. For samples of earlier weights
    (`weights/staleness`) it may be.
    """
    names = [f"actor/excluded_at_start_{sign}" for sign in ("positive", "negative")]
    positive, negative = (metrics.get(name) for name in names)
    if positive is None or negative is None or metrics.get("weights/staleness"):
        return None
    if abs(positive - negative) <= ONE_SIDED_BY:
        return None
    return (
        f"Before anything was learned in a step, the clip range excluded {negative:.0%} of the terms with a negative "
        f"advantage and {positive:.0%} of those with a positive one: log-probabilities of engine and trainer differ "
        "in one direction, by more than clip_ratio. Raise actor.diffusion_loss.clip_ratio, let both compute in "
        "float32, or write algorithm.rollout_correction.bypass_mode=false."
    )


@dataclass
class RunWarnings:
    """Gives each warning once, as an event of the run folder.

    Args:
        held_out: keys of the scorers that score evaluations only.
        patience: evaluations in a row with a fall of such a scorer after which the run ends; None: it goes on.
    """

    folder: RunFolder
    held_out: Sequence[str] = ()
    patience: int | None = None
    _collapse: collapse.CollapseState = field(default_factory=collapse.CollapseState, init=False)
    _drift: policy_drift.DriftState = field(default_factory=policy_drift.DriftState, init=False)
    _degradation: degradation.DegradationState = field(default_factory=degradation.DegradationState, init=False)
    _reward: RewardState = field(default_factory=RewardState, init=False)
    _held_out: dict[str, overoptimization.HeldOutState] = field(default_factory=dict, init=False)
    _one_sided: bool = field(default=False, init=False)
    _named: set[str] = field(default_factory=set, init=False)  # what scorers did not return: failures, extras

    @property
    def collapsed(self) -> bool:
        """Whether the samples count as collapsed."""
        return self._collapse.collapsed

    @property
    def ends_early(self) -> bool:
        """Whether the reward is exploited for so long that the run ends."""
        return self.patience is not None and any(state.falls >= self.patience for state in self._held_out.values())

    def observe(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """Take the metrics of a step, of which each number counts once."""
        self._observe(step, {**metrics, "step": step}, self.folder.event)

    def _observe(self, step: int, metrics: Mapping[str, float | None], event: Callable[..., None]) -> None:
        self._collapse, collapsed = collapse.observe(self._collapse, metrics)
        self._drift, diverged = policy_drift.observe(self._drift, metrics)
        self._degradation, degraded = degradation.observe(self._degradation, metrics)
        self._reward, constant = observe_reward(self._reward, metrics)
        for scorer in self.held_out:
            state = self._held_out.get(scorer, overoptimization.HeldOutState())
            self._held_out[scorer], exploited = overoptimization.observe(state, scorer, metrics)
            if exploited is not None:
                event("warning", reason=overoptimization.REASON, message=exploited, step=step)
        one_sided = None if self._one_sided else clipping_text(metrics)
        if one_sided is not None:
            self._one_sided = True
            event("warning", reason=ONE_SIDED, message=one_sided, step=step)
        if constant is not None:
            event("warning", reason=CONSTANT_REWARD, message=constant, step=step)
        if collapsed is not None:
            event("warning", reason=collapse.REASON, message=collapsed, step=step)
        if degraded is not None:
            event("warning", reason=degradation.REASON, message=degraded, step=step)
        for message in diverged:
            event("warning", reason=policy_drift.REASON, message=message, step=step)

    def observe_scores(
        self, step: int, failures: Sequence[ScoringFailure], extras: Mapping[str, Sequence[Any]]
    ) -> None:
        """Take what scorers returned for the samples of a step, or of an evaluation after it."""
        for has_reward, consequence in CONSEQUENCES.items():
            first = next((failure for failure in failures if failure.has_reward == has_reward), None)
            if first is not None and consequence not in self._named:
                self._named.add(consequence)
                self.folder.event("warning", reason=NOT_SCORED, message=f"{first.text}. {consequence}", step=step)
        for name, count in step_metrics.not_finite(extras).items():
            if name not in self._named:
                self._named.add(name)
                text = f"the scorers' field {name} is not a finite number for {count} samples: its mean is without them"
                self.folder.event("warning", reason=NOT_FINITE, message=text, step=step)

    def restore(self) -> None:
        """Replay the metrics of the steps before the checkpoint; their warnings have been given."""
        for line in self.folder.metrics():
            self._observe(0, line, lambda *_, **__: None)
