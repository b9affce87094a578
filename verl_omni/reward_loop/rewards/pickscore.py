"""Scorer of human preference for an image given its prompt (PickScore, arXiv:2305.01569)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from verl_omni.reward_loop.setting_types import Device, ModelFolder

if TYPE_CHECKING:
    from torch import Tensor

MODEL_CLASS = "verl_omni.reward_loop.models.clip_model:ClipModel"
WEIGHTS = "yuvalkirstain/PickScore_v1"
INPUTS = "laion/CLIP-ViT-H-14-laion2B-s32B-b79K"
Scale = Annotated[float, Field(description="Factor of the score; 1/26 is Flow-GRPO's.")]


def compute_score(
    data_sources: Sequence[str],
    solution_images: Sequence[Tensor],
    ground_truths: Sequence[Any],
    extra_infos: Sequence[Mapping[str, Any]],
    model_name_or_path: ModelFolder = WEIGHTS,
    processor_name_or_path: ModelFolder = INPUTS,
    device: Device = "cpu",
    score_scale: Scale = 1.0,
) -> list[float]:
    """score_scale * exp(logit_scale) * cosine of image and prompt; of a video, the mean of its frames.

    Args:
        score_scale: 1/26 gives the reward of Flow-GRPO's code, which is near 1 for a good image.
        model_name_or_path: the fine-tuned CLIP model, a folder or a repository in the hub cache.
        processor_name_or_path: image processor and tokenizer, which the released model does not contain.

    Raises:
        FileNotFoundError, ValueError: as `load_once`; or a sample has no prompt.
    """
    from verl_omni.reward_loop.models.clip_model import ClipModel, load_once, prompts_of
    from verl_omni.reward_loop.video_frames import mean_over_frames

    clip = load_once(ClipModel, model_name_or_path, processor_name_or_path, device)
    cosines = mean_over_frames(solution_images, prompts_of(extra_infos, "pickscore"), clip.cosines)
    return [score_scale * clip.logit_scale * cosine for cosine in cosines]
