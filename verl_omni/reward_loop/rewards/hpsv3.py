"""Scorer of human preference for an image given its prompt, by a vision-language model (HPSv3, arXiv:2508.03789)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from verl_omni.reward_loop.setting_types import Device, ModelFolder

if TYPE_CHECKING:
    from torch import Tensor

MODEL_CLASS = "verl_omni.reward_loop.models.hpsv3_model:Hpsv3Model"
WEIGHTS = "MizzenAI/HPSv3"
BASE = "Qwen/Qwen2-VL-7B-Instruct"


def compute_score(
    data_sources: Sequence[str],
    solution_images: Sequence[Tensor],
    ground_truths: Sequence[Any],
    extra_infos: Sequence[Mapping[str, Any]],
    model_name_or_path: ModelFolder = WEIGHTS,
    processor_name_or_path: ModelFolder = BASE,
    device: Device = "cpu",
    score_scale: float = 1.0,
) -> list[float]:
    """score_scale * the mean preference that the model predicts, usually 0 to 10; of a video, the mean of its frames.

    Args:
        model_name_or_path: the weights: a folder or a repository in the hub cache with HPSv3.safetensors, or a file.
        processor_name_or_path: the base model, a folder or a repository in the hub cache, of which the configuration,
            the tokenizer and the processor of images are read; its weights are not.

    Raises:
        FileNotFoundError, ValueError: as `load_once`; or an image is too narrow, or a sample has no prompt.
    """
    from verl_omni.reward_loop.models.clip_model import load_once, prompts_of
    from verl_omni.reward_loop.models.hpsv3_model import Hpsv3Model
    from verl_omni.reward_loop.video_frames import mean_over_frames

    prompts = prompts_of(extra_infos, "hpsv3")
    model = load_once(Hpsv3Model, model_name_or_path, processor_name_or_path, device)
    return [score_scale * score for score in mean_over_frames(solution_images, prompts, model.scores)]
