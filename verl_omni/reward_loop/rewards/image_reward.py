"""Scorer of human preference for an image given its prompt (ImageReward, arXiv:2304.05977)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from verl_omni.reward_loop.setting_types import Device, ModelFolder

if TYPE_CHECKING:
    from torch import Tensor

MODEL_CLASS = "verl_omni.reward_loop.models.image_reward_model:ImageRewardModel"
WEIGHTS = "zai-org/ImageReward"
INPUTS = "google-bert/bert-base-uncased"


def compute_score(
    data_sources: Sequence[str],
    solution_images: Sequence[Tensor],
    ground_truths: Sequence[Any],
    extra_infos: Sequence[Mapping[str, Any]],
    model_name_or_path: ModelFolder = WEIGHTS,
    processor_name_or_path: ModelFolder = INPUTS,
    device: Device = "cpu",
    score_scale: float = 1.0,
) -> list[float]:
    """score_scale * the standardized preference that the model predicts, usually -2 to 2; of a video, the mean of its
    frames.

    Args:
        model_name_or_path: ImageReward.pt, or a folder or a repository in the hub cache with it.
        processor_name_or_path: the tokenizer of BERT, a folder or a repository in the hub cache.

    Raises:
        FileNotFoundError, ValueError: as `load_once`; or a sample has no prompt.
    """
    from verl_omni.reward_loop.models.clip_model import load_once, prompts_of
    from verl_omni.reward_loop.models.image_reward_model import ImageRewardModel
    from verl_omni.reward_loop.video_frames import mean_over_frames

    prompts = prompts_of(extra_infos, "image_reward")
    model = load_once(ImageRewardModel, model_name_or_path, processor_name_or_path, device)
    return [score_scale * score for score in mean_over_frames(solution_images, prompts, model.scores)]
