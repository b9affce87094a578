"""PURE: whether the updates of a run have begun to move its policy too far, from its metrics.

There are two signs, both averaged over several steps. Either the clip fraction was low in the first steps and is nearly
1: the updates of one step move almost every ratio of new to old policy out of the clip range. Or the KL divergence of a
step, to the base model or to the policy before the update, reaches the divergence between two normal distributions
whose means are one standard deviation apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from verl_omni.trainer.metrics.collapse import ADVICE, WINDOW

REASON = "PolicyDiverged"
CLIP = "actor/clip_fraction"
KLS = {"actor/kl": "the base model", "actor/kl_to_old": "the policy before the update"}
CLIPPED = 0.9
CLIPPED_AT_FIRST = 0.6
KL_LIMIT = 0.5  # nats for each element; (mean - other mean)^2 / (2 std^2) at a distance of one std
RECOVERED = 0.5  # share of a limit below which a sign may be reported again


@dataclass(frozen=True, slots=True)
class DriftState:
    """Whether a policy has diverged, from its metrics up to a step.

    Attributes:
        recent: by metric, the values of the last `WINDOW` steps that recorded it.
        first: average of the first `WINDOW` steps' clip fractions; None before that many steps.
        reported: metrics that are beyond their limit, and were reported.
    """

    recent: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    first: float | None = None
    reported: frozenset[str] = frozenset()

    def average(self, metric: str) -> float | None:
        """Average of a metric's last `WINDOW` values; None before that many."""
        values = self.recent.get(metric, ())
        return sum(values) / WINDOW if len(values) == WINDOW else None


def observe(state: DriftState, metrics: Mapping[str, float | None]) -> tuple[DriftState, tuple[str, ...]]:
    """The state after a step's metrics, and the texts of warnings about signs that begin with it."""
    recent = dict(state.recent)
    for metric in (CLIP, *KLS):
        value = metrics.get(metric)
        if value is not None and math.isfinite(value):
            recent[metric] = (*recent.get(metric, ()), value)[-WINDOW:]
    state = replace(state, recent=recent)
    state = replace(state, first=state.average(CLIP) if state.first is None else state.first)
    signs = dict(_signs(state))
    kept = frozenset(metric for metric in state.reported if not _has_recovered(state, metric))
    new = {metric: text for metric, text in signs.items() if metric not in kept}
    return replace(state, reported=kept | frozenset(new)), tuple(new.values())


def _signs(state: DriftState) -> Iterator[tuple[str, str]]:
    """Metric -> text of each that is beyond its limit."""
    clipped = state.average(CLIP)
    first = state.first
    if clipped is not None and first is not None and clipped >= CLIPPED and first < CLIPPED_AT_FIRST:
        text = (
            "The updates of a step take nearly all ratios of new to old policy out of the clip range: the clip "
            f"fraction is {clipped:.0%} in the last {WINDOW} steps, and was {first:.0%} in the first {WINDOW}. {ADVICE}"
        )
        yield CLIP, text
    for metric, other in KLS.items():
        kl = state.average(metric)
        if kl is not None and kl >= KL_LIMIT:
            text = (
                f"The policy is far from {other}: the KL divergence of a step is {kl:.3g} in the last {WINDOW} steps; "
                f"at {KL_LIMIT:g} the means differ by the standard deviation of the sampler's noise. {ADVICE}"
            )
            yield metric, text


def _has_recovered(state: DriftState, metric: str) -> bool:
    average = state.average(metric)
    return average is not None and average < RECOVERED * (CLIPPED if metric == CLIP else KL_LIMIT)
