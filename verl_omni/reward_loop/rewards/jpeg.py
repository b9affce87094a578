"""Scorer of JPEG compressibility (DDPO, arXiv:2305.13301)."""

from __future__ import annotations

import io
from typing import Any

from PIL import Image
from torch import Tensor

from verl_omni.reward_loop.setting_types import Quality
from verl_omni.reward_loop.video_frames import chosen_frames


def compute_score(
    data_source: str, solution_image: Tensor, ground_truth: Any, extra_info: Any, quality: Quality = 95
) -> float:
    """Negative size of the image as a JPEG, in kilobytes (1000 bytes); of a video, the mean over its frames."""
    frames = chosen_frames(solution_image, 1)
    return -sum(_size(frame, quality) for frame in frames) / len(frames) / 1000


def _size(image: Tensor, quality: int) -> int:
    file = io.BytesIO()
    Image.fromarray(image.permute(1, 2, 0).contiguous().numpy()).save(file, "JPEG", quality=quality)
    return len(file.getvalue())
