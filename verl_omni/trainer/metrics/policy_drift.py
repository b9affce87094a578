"""PURE: whether the updates of a run have begun to move its policy too far, from its metrics.

There are three signs, all averaged over several steps. The clip fraction was low in the first steps and is nearly 1:
the updates of one step move almost every ratio of new to old policy out of the clip range. The KL divergence of a step,
to the base model or to the policy before the update, reaches the divergence between two normal distributions whose
means are one standard deviation apart. Or, for algorithms that compare velocities (DiffusionNFT, AWM, Diffusion-DPO),
their mean squared difference is no longer small next to the noise that they predict.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from verl_omni.trainer.metrics.collapse import ADVICE
from verl_omni.trainer.metrics.recent_averages import WINDOW, RecentAverages

REASON = "PolicyDiverged"
CLIP = "actor/clip_fraction"
CLIPPED = 0.9
CLIPPED_AT_FIRST = 0.6
RECOVERED = 0.5  # share of a limit below which a sign may be reported again
# Mean squared difference of velocities; the noise in their targets has variance 1. DiffusionNFT on the colors example
# stays below 0.001 at learning rate 0.001, and passes 0.1 in the fifth step at 0.05, where all rewards fall to 0.
DISTANCE_LIMIT = 0.1
DISTANCE_ADVICE = (
    "Lower the learning rate, or hold the policy to the base model (diffusion_loss.ref_kl_coef, or dpo_beta of "
    "Diffusion-DPO)."
)


@dataclass(frozen=True, slots=True)
class Sign:
    """A metric that is at most `limit` while a run is healthy, and the text about one that is not."""

    limit: float
    text: str
    advice: str


def _kl(other: str) -> Sign:
    """KL divergence of a step, in nats per element: (mean - other mean)^2 / (2 std^2), 0.5 at one std."""
    text = (
        f"The policy is far from {other}: the KL divergence of a step is {{value:.3g}} in the last {{steps}} steps; at "
        "{limit:g} the means differ by the standard deviation of the sampler's noise."
    )
    return Sign(0.5, text, ADVICE)


def _distance(other: str) -> Sign:
    text = (
        f"The policy is far from {other}: the mean squared difference of their velocities is {{value:.3g}} in the last "
        "{steps} steps, and the noise that they predict has variance 1."
    )
    return Sign(DISTANCE_LIMIT, text, DISTANCE_ADVICE)


_RATIO = (
    "The updates of a step move the likelihood ratios of new to old policy by {value:.3g} on average in the last "
    "{steps} steps; at 1 an average ratio leaves the clip range that AWM has by default."
)
SIGNS = {
    "actor/kl": _kl("the base model"),
    "actor/kl_to_old": _kl("the policy before the update"),
    "actor/distance_to_base": _distance("the base model"),
    "actor/distance_to_old": _distance("the old policy"),
    "actor/ratio_distance": Sign(1.0, _RATIO, DISTANCE_ADVICE),
}


@dataclass(frozen=True, slots=True)
class DriftState:
    """Whether a policy has diverged, from its metrics up to a step."""

    averages: RecentAverages = field(default_factory=RecentAverages)
    reported: frozenset[str] = frozenset()
    """Metrics that are beyond their limit, and were reported."""


def observe(state: DriftState, metrics: Mapping[str, float | None]) -> tuple[DriftState, tuple[str, ...]]:
    """The state after a step's metrics, and the texts of warnings about signs that begin with it."""
    averages = state.averages.observe((CLIP, *SIGNS), metrics)
    texts = dict(_texts(averages))
    kept = frozenset(metric for metric in state.reported if not _has_recovered(averages, metric))
    new = {metric: text for metric, text in texts.items() if metric not in kept}
    return replace(state, averages=averages, reported=kept | frozenset(new)), tuple(new.values())


def _texts(averages: RecentAverages) -> Iterator[tuple[str, str]]:
    """Metric -> text of each that is beyond its limit."""
    clipped = averages.average(CLIP)
    first = averages.first.get(CLIP)
    if clipped is not None and first is not None and clipped >= CLIPPED and first < CLIPPED_AT_FIRST:
        text = (
            "The updates of a step take nearly all ratios of new to old policy out of the clip range: the clip "
            f"fraction is {clipped:.0%} in the last {WINDOW} steps, and was {first:.0%} in the first {WINDOW}. {ADVICE}"
        )
        yield CLIP, text
    for metric, sign in SIGNS.items():
        value = averages.average(metric)
        if value is not None and value >= sign.limit:
            text = sign.text.format(value=value, steps=WINDOW, limit=sign.limit)
            yield metric, f"{text} {sign.advice}"


def _has_recovered(averages: RecentAverages, metric: str) -> bool:
    average = averages.average(metric)
    limit = CLIPPED if metric == CLIP else SIGNS[metric].limit
    return average is not None and average < RECOVERED * limit
