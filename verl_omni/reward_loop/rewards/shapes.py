"""Scorer of the shapes example: whether the image shows the shapes that the prompt names."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from verl_omni.models.shapes.checker import judge
from verl_omni.reward_loop.rewards import check_picture
from verl_omni.reward_loop.setting_types import Share


def compute_score(
    data_source: str, solution_image: Tensor, ground_truth: str, extra_info: Any, correct_weight: Share = 0.5
) -> dict[str, float]:
    """correct_weight * correct + (1 - correct_weight) * partial, in [0, 1].

    Args:
        ground_truth: the prompt.

    Returns:
        `score`, `correct` (0 or 1), `partial` and `roughness`, for every image.
    """
    check_picture(solution_image, "shapes")
    picture = solution_image.permute(1, 2, 0).numpy().astype(np.float64) / 255
    verdict = judge(picture, ground_truth)
    score = correct_weight * verdict.correct + (1 - correct_weight) * verdict.partial
    return {
        "score": score,
        "correct": float(verdict.correct),
        "partial": verdict.partial,
        "roughness": verdict.roughness,
    }
