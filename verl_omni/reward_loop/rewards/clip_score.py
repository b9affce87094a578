"""Scorer of the similarity of an image and its prompt (CLIPScore, arXiv:2104.08718)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from verl_omni.reward_loop.setting_types import Device, ModelFolder

if TYPE_CHECKING:
    from torch import Tensor

MODEL_CLASS = "verl_omni.reward_loop.models.clip_model:ClipModel"
WEIGHTS = "openai/clip-vit-base-patch32"
SCALE = 2.5  # w in the paper


def compute_score(
    data_sources: Sequence[str],
    solution_images: Sequence[Tensor],
    ground_truths: Sequence[Any],
    extra_infos: Sequence[Mapping[str, Any]],
    model_name_or_path: ModelFolder = WEIGHTS,
    device: Device = "cpu",
) -> list[float]:
    """2.5 * max(cosine of image and prompt, 0), from 0 to 2.5; of a video, the mean of its frames.

    The paper's prefix "A photo depicts" is not written before the prompt: a prompt is no caption of a photo.

    Args:
        model_name_or_path: a CLIP model with its processor, a folder or a repository in the hub cache.

    Raises:
        FileNotFoundError, ValueError: as `load_once`; or a sample has no prompt.
    """
    from verl_omni.reward_loop.models.clip_model import ClipModel, load_once, prompts_of
    from verl_omni.reward_loop.video_frames import mean_over_frames

    clip = load_once(ClipModel, model_name_or_path, model_name_or_path, device)

    def score(images: Sequence[Tensor], prompts: Sequence[str]) -> Tensor:
        return SCALE * clip.cosines(images, prompts).clamp(min=0)

    return mean_over_frames(solution_images, prompts_of(extra_infos, "clip_score"), score)
