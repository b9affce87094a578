"""Scorer of brightness, of an image or over all frames of a video."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def compute_score(data_source: str, solution_image: Tensor, ground_truth: Any, extra_info: Any) -> float:
    """Mean of all pixels / 255, from 0 (black) to 1 (white); also of videos."""
    return float(solution_image.float().mean() / 255)
