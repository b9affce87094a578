"""Scorer of human preference for an image given its prompt (PickScore, arXiv:2305.01569)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from verl_omni.reward_loop.clip_model import MODEL, PROCESSOR, ClipModel, clip_problems, load_once, prompts_of
from verl_omni.reward_loop.rewards import check_picture

WEIGHTS, INPUTS = "yuvalkirstain/PickScore_v1", "laion/CLIP-ViT-H-14-laion2B-s32B-b79K"


def compute_score(
    data_sources: Sequence[str],
    solution_images: Sequence[Tensor],
    ground_truths: Sequence[Any],
    extra_infos: Sequence[Mapping[str, Any]],
    model_name_or_path: str = WEIGHTS,
    processor_name_or_path: str = INPUTS,
    device: str = "cpu",
) -> list[float]:
    """exp(logit_scale) * cosine of image and prompt, for each sample, not divided by anything.

    Args:
        model_name_or_path: the fine-tuned CLIP model, a folder or a repository in the hub cache.
        processor_name_or_path: image processor and tokenizer, which the released model does not contain.

    Raises:
        FileNotFoundError, ValueError: as `load_once`; or an image is a video, or a sample has no prompt.
    """
    for image in solution_images:
        check_picture(image, "pickscore")
    clip = load_once(ClipModel, model_name_or_path, processor_name_or_path, device)
    cosines = clip.cosines(solution_images, prompts_of(extra_infos, "pickscore"))
    return [float(each) for each in clip.logit_scale * cosines]


def setting_problems(given: Mapping[str, Any]) -> list[str]:
    """What is missing on this machine, a phrase each."""
    return clip_problems(given, {MODEL: WEIGHTS, PROCESSOR: INPUTS})
