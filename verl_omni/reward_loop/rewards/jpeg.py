"""Scorer of JPEG compressibility (DDPO, arXiv:2305.13301)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from verl_omni.reward_loop.setting_types import Quality

if TYPE_CHECKING:
    from torch import Tensor


def compute_score(
    data_source: str, solution_image: Tensor, ground_truth: Any, extra_info: Any, quality: Quality = 95
) -> float:
    """Minus the size of the image as a JPEG, in kilobytes of 1000 bytes; of a video, the mean of its frames."""
    from verl_omni.reward_loop.video_frames import chosen_frames
    from verl_omni.utils.pixels import jpeg_size

    frames = chosen_frames(solution_image, 1)
    return -sum(jpeg_size(frame, quality) for frame in frames) / len(frames) / 1000
