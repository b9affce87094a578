"""Scorer of one primary colour, in an image or over all frames of a video."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args

if TYPE_CHECKING:
    from torch import Tensor

Color = Literal["red", "green", "blue"]
CHANNELS: tuple[Color, ...] = get_args(Color)


def compute_score(
    data_source: str, solution_image: Tensor, ground_truth: Any, extra_info: Any, color: Color = "red"
) -> float:
    """Mean of that channel minus the mean of the other two, from -1 to 1; also of videos.

    Raises:
        ValueError: `color` is not red, green or blue.
    """
    if color not in CHANNELS:
        raise ValueError(f"Unknown color {color!r}; one of {', '.join(CHANNELS)}")
    means = solution_image.float().movedim(-3, 0).flatten(1).mean(dim=1) / 255
    channel_mean = means[CHANNELS.index(color)]
    return float(channel_mean - (means.sum() - channel_mean) / 2)
