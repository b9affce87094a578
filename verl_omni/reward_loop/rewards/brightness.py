"""Scorer of brightness, of an image or over all frames of a video."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def compute_score(data_source: str, solution_image: Tensor, ground_truth: Any, extra_info: Any) -> float:
    """Mean of all pixels / 255: 0 is black, 1 is white."""
    return float(solution_image.float().mean() / 255)
