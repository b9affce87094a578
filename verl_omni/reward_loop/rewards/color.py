"""Scorer of one primary colour, in an image or over all frames of a video."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

CHANNELS = {"red": 0, "green": 1, "blue": 2}


def compute_score(
    data_source: str, solution_image: Tensor, ground_truth: Any, extra_info: Any, color: str = "red"
) -> float:
    """Mean of the colour's channel minus the mean of the other two, in [-1, 1].

    Raises:
        ValueError: `color` is not red, green or blue.
    """
    if color not in CHANNELS:
        raise ValueError(f"Unknown color {color!r}; one of {', '.join(CHANNELS)}")
    means = solution_image.float().movedim(-3, 0).flatten(1).mean(dim=1) / 255
    own = means[CHANNELS[color]]
    return float(own - (means.sum() - own) / 2)


def setting_problems(given: Mapping[str, Any]) -> list[str]:
    """Messages about invalid values of settings."""
    color = given.get("color", "red")
    return [] if color in CHANNELS else [f"color: {color} is not one of {', '.join(CHANNELS)}"]
