"""Scorer of human preference for an image given its prompt (PickScore, arXiv:2305.01569)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from verl_omni.reward_loop.clip_model import MODEL, PROCESSOR, ClipModel, clip_problems, load_once, prompts_of
from verl_omni.reward_loop.video_frames import mean_over_frames

WEIGHTS = "yuvalkirstain/PickScore_v1"
INPUTS = "laion/CLIP-ViT-H-14-laion2B-s32B-b79K"


def compute_score(
    data_sources: Sequence[str],
    solution_images: Sequence[Tensor],
    ground_truths: Sequence[Any],
    extra_infos: Sequence[Mapping[str, Any]],
    model_name_or_path: str = WEIGHTS,
    processor_name_or_path: str = INPUTS,
    device: str = "cpu",
    score_scale: float = 1.0,
) -> list[float]:
    """score_scale * exp(logit_scale) * cosine of image and prompt, for each image; of a video the mean of its frames.

    Args:
        score_scale: 1/26 gives the reward of Flow-GRPO's code, which is near 1 for a good image.
        model_name_or_path: the fine-tuned CLIP model, a folder or a repository in the hub cache.
        processor_name_or_path: image processor and tokenizer, which the released model does not contain.

    Raises:
        FileNotFoundError, ValueError: as `load_once`; or a sample has no prompt.
    """
    clip = load_once(ClipModel, model_name_or_path, processor_name_or_path, device)
    cosines = mean_over_frames(solution_images, prompts_of(extra_infos, "pickscore"), clip.cosines)
    return [score_scale * clip.logit_scale * each for each in cosines]


def setting_problems(given: Mapping[str, Any]) -> list[str]:
    """Messages about what is missing on this machine."""
    return clip_problems(given, {MODEL: WEIGHTS, PROCESSOR: INPUTS})
