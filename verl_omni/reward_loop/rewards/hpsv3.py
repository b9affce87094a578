"""Scorer of human preference for an image given its prompt, by a vision-language model (HPSv3, arXiv:2508.03789)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from verl_omni.reward_loop.clip_model import load_once, prompts_of
from verl_omni.reward_loop.hpsv3_model import BASE, WEIGHTS, Hpsv3Model, hpsv3_problems
from verl_omni.reward_loop.video_frames import mean_over_frames


def compute_score(
    data_sources: Sequence[str],
    solution_images: Sequence[Tensor],
    ground_truths: Sequence[Any],
    extra_infos: Sequence[Mapping[str, Any]],
    model_name_or_path: str = WEIGHTS,
    processor_name_or_path: str = BASE,
    device: str = "cpu",
    score_scale: float = 1.0,
) -> list[float]:
    """score_scale times the mean of the score that the model predicts, for each image; not bounded.

    The score of a video is the mean over its frames.

    Args:
        model_name_or_path: the weights: a folder or a repository in the hub cache with HPSv3.safetensors, or a file.
        processor_name_or_path: the base model, a folder or a repository in the hub cache, of which the configuration,
            the tokenizer and the processor of images are read; its weights are not.

    Raises:
        FileNotFoundError, ValueError: as `load_once`; or an image is too narrow, or a sample has no prompt.
    """
    prompts = prompts_of(extra_infos, "hpsv3")
    model = load_once(Hpsv3Model, model_name_or_path, processor_name_or_path, device)
    return [score_scale * score for score in mean_over_frames(solution_images, prompts, model.scores)]


def setting_problems(given: Mapping[str, Any]) -> list[str]:
    """Messages about what is missing on this machine."""
    return hpsv3_problems(given)
