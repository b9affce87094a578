"""Names of metrics: which are maxima, so that they are combined as such."""

from __future__ import annotations


def is_maximum(name: str) -> bool:
    """Whether a metric is a maximum: `actor/ratio_max`, `rollout_corr/max_abs_diff`."""
    last = name.rpartition("/")[2]
    return last.startswith("max_") or last.endswith("_max")
