"""PURE: whether the training images of a run have become much darker, flatter, noisier or more alike than at its start.

A reward says nothing about what its scorer does not look at. A policy trained on recognized text, for example, may turn
all backgrounds black while the text gets easier to read. The statistics of the pixels, averaged over several steps, are
compared with the first steps of the same run, because no value of a statistic is good in itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from verl_omni.trainer.metrics.collapse import ADVICE
from verl_omni.trainer.metrics.recent_averages import WINDOW, RecentAverages

REASON = "SamplesDegraded"
REWARD = "reward/mean"
SHARES = {
    "images/dark": "share of dark pixels",
    "images/clipped": "share of color values at 0 or 255",
    "images/luminance": "luminance",
    "images/saturation": "saturation",
}
SHARE_LIMIT = 0.3  # change, in either direction for luminance, otherwise upwards
AMOUNTS = {
    "images/edges": "strength of edges",
    "images/jpeg_bits": "compressed size in bits per pixel",
    "images/diversity": "diversity of a prompt's images",
}
AMOUNT_FACTOR = 4.0  # change, as a factor in either direction; for diversity only downwards


@dataclass(frozen=True, slots=True)
class DegradationState:
    """The statistics of a run's training images up to a step."""

    averages: RecentAverages = field(default_factory=RecentAverages)
    reported: frozenset[str] = frozenset()
    """Statistics that are beyond their limits, and were reported."""


def observe(state: DegradationState, metrics: Mapping[str, float | None]) -> tuple[DegradationState, str | None]:
    """The state after a step's metrics, and the text of a warning about statistics that pass their limits with it."""
    names = (*SHARES, *AMOUNTS)
    if not any(name in metrics for name in names):
        return state, None
    averages = state.averages.observe((*names, REWARD), metrics)
    passed = [name for name in names if _is_beyond(averages, name)]
    new = [name for name in passed if name not in state.reported]
    state = replace(state, averages=averages, reported=state.reported | frozenset(new))
    return state, _message(averages, new) if new else None


def _is_beyond(averages: RecentAverages, name: str) -> bool:
    now = averages.average(name)
    first = averages.first.get(name)
    if now is None or first is None:
        return False
    if name in SHARES:
        change = abs(now - first) if name == "images/luminance" else now - first
        return change >= SHARE_LIMIT
    grew = name != "images/diversity" and now >= AMOUNT_FACTOR * first
    return first > 0 and (now <= first / AMOUNT_FACTOR or grew)


def _message(averages: RecentAverages, names: list[str]) -> str:
    labels = SHARES | AMOUNTS
    changes = ", ".join(f"{labels[name]} {averages.first[name]:.2g} -> {averages.average(name):.2g}" for name in names)
    reward = averages.average(REWARD)
    scored = "" if reward is None else f" The reward went from {averages.first[REWARD]:.3g} to {reward:.3g} meanwhile."
    return (
        f"The training images differ strongly from the images of the first {WINDOW} steps: {changes}.{scored} If that "
        "is not what the reward asks for, the policy exploits its scorer: look at the images in the report. "
        f"{ADVICE} Or add a scorer that sees the fault."
    )
