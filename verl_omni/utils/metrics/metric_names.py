"""Names of metrics: which are maxima, so that they are combined as such."""

from collections.abc import Sequence

import numpy as np


def is_maximum(name: str) -> bool:
    """Whether a metric is a maximum: `actor/ratio_max`, `rollout_corr/max_abs_diff`."""
    last = name.rpartition("/")[2]
    return last.startswith("max_") or last.endswith("_max")


def combine(name: str, values: Sequence[float]) -> float:
    """Combine a metric's values from parts, mini-batches or ranks into one; NaN if any of them is NaN.

    Python's `max` would hide a NaN that is not the first value.
    """
    return float(np.max(values) if is_maximum(name) else np.mean(values))
