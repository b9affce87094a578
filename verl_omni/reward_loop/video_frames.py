"""Scores of videos by what scores images."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

AT_ONCE = 32  # images in a call of the model, as many as `reward.batch_size` is unless given
ScoreImages = Callable[[Sequence[Tensor], Sequence[str]], Tensor]


def chosen_frames(sample: Tensor, interval: int) -> list[Tensor]:
    """PURE: an image [3, H, W] itself; of a video [T, 3, H, W] its first frame, and every `interval`-th after it."""
    return [sample] if sample.ndim == 3 else list(sample[::interval])


def mean_over_frames(samples: Sequence[Tensor], prompts: Sequence[str], score: ScoreImages) -> list[float]:
    """The score of each image uint8 [3, H, W], and of each video [T, 3, H, W] the mean of the scores of its frames.

    Args:
        score: takes images and their prompts, and returns a number for each, [B].
    """
    if all(sample.ndim == 3 for sample in samples):
        return [float(number) for number in score(samples, prompts)]
    frames = [chosen_frames(sample, 1) for sample in samples]
    images = [image for sample_frames in frames for image in sample_frames]
    texts = [prompt for prompt, sample_frames in zip(prompts, frames, strict=True) for _ in sample_frames]
    parts = [slice(start, start + AT_ONCE) for start in range(0, len(images), AT_ONCE)]
    frame_scores = torch.cat([score(images[part], texts[part]) for part in parts])
    return [float(scores.mean()) for scores in frame_scores.split([len(sample_frames) for sample_frames in frames])]
