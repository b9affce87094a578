"""Scorer of the shapes example: whether the image shows the shapes that the prompt names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from verl_omni.reward_loop.rewards import check_picture
from verl_omni.reward_loop.setting_types import Share

if TYPE_CHECKING:
    from torch import Tensor

MODALITY = "image"
Weight = Annotated[Share, Field(description="Weight of 'entirely correct' against 'partly correct'.")]


def compute_score(
    data_source: str, solution_image: Tensor, ground_truth: str, extra_info: Any, correct_weight: Weight = 0.5
) -> dict[str, float]:
    """correct_weight * correct + (1 - correct_weight) * partial, from 0 to 1: whether the image shows the shapes of its
    prompt; only for the example model.

    Args:
        ground_truth: the prompt.

    Returns:
        `score`, `correct` (0 or 1), `partial` and `roughness`, for every image.
    """
    import numpy as np

    from verl_omni.models.shapes.checker import judge

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
