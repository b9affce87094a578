"""PURE, without torch: settings of rejection sampling, `algorithm.rollout_correction.rollout_rs` and its threshold."""

import math
from dataclasses import dataclass

OPTIONS = (
    "token_k1",
    "token_k2",
    "token_k3",
    "seq_sum_k1",
    "seq_sum_k2",
    "seq_sum_k3",
    "seq_mean_k1",
    "seq_mean_k2",
    "seq_mean_k3",
    "seq_max_k2",
    "seq_max_k3",
)


@dataclass(frozen=True, slots=True)
class Criterion:
    """Criterion for keeping a step or a sample.

    Attributes:
        over: `token` (each step separately), or the reduction over the steps of a sample: `seq_sum`, `seq_mean` or
            `seq_max`.
        estimator: estimator of the KL divergence: `k1`, `k2` or `k3`.
        lowest, highest: range of estimates that are kept.
    """

    over: str
    estimator: str
    lowest: float
    highest: float


def parse(option: str, threshold: object) -> Criterion:
    """The criterion of verl's settings.

    Args:
        option: one of `OPTIONS`.
        threshold: the upper limit; for k1, limits of the ratio of both policies: `lower_upper`, or the upper one, whose
            reciprocal is the lower one.

    Raises:
        ValueError: there is no such option, or the threshold is not what it takes.
    """
    if option not in OPTIONS:
        raise ValueError(f"{option} is not one of {', '.join(OPTIONS)}")
    over, _, estimator = option.rpartition("_")
    lower, _, upper = str(threshold).rpartition("_")
    try:
        highest = float(upper)
        lowest = float(lower) if lower else None
    except ValueError:
        highest = 0.0
        lowest = None
    if estimator == "k1" and highest > 0 and 0 < (lowest if lowest is not None else 1 / highest) <= highest:
        return Criterion(over, estimator, math.log(lowest if lowest is not None else 1 / highest), math.log(highest))
    if estimator != "k1" and highest > 0 and lowest is None:
        return Criterion(over, estimator, -math.inf, highest)
    wanted = "two positive numbers lower_upper, such as 0.5_2.0" if estimator == "k1" else "a positive number"
    raise ValueError(f"{threshold} is not a threshold of {option}; write {wanted}")
