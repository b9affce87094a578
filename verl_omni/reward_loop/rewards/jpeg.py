"""Scorer of JPEG compressibility (DDPO, arXiv:2305.13301)."""

from __future__ import annotations

import io
from typing import Any

from PIL import Image
from torch import Tensor

from verl_omni.reward_loop.rewards import check_picture
from verl_omni.reward_loop.setting_types import Quality


def compute_score(
    data_source: str, solution_image: Tensor, ground_truth: Any, extra_info: Any, quality: Quality = 95
) -> float:
    """Negative size of the image as a JPEG, in kilobytes (1000 bytes)."""
    check_picture(solution_image, "jpeg")
    file = io.BytesIO()
    Image.fromarray(solution_image.permute(1, 2, 0).contiguous().numpy()).save(file, "JPEG", quality=quality)
    return -len(file.getvalue()) / 1000
