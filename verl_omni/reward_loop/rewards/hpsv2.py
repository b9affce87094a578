"""Scorer of human preference for an image given its prompt (HPS v2.1; HPS v2, arXiv:2306.09341)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from verl_omni.reward_loop.setting_types import Device, ModelFolder

if TYPE_CHECKING:
    from torch import Tensor

MODEL_CLASS = "verl_omni.reward_loop.models.hpsv2_model:Hpsv2Model"
WEIGHTS = "xswu/HPSv2"
INPUTS = "laion/CLIP-ViT-H-14-laion2B-s32B-b79K"


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
    """score_scale * cosine of image and prompt, usually 0.2 to 0.35; of a video, the mean of its frames.

    Args:
        score_scale: 100 gives the numbers of the paper's tables.
        model_name_or_path: HPS_v2.1_compressed.pt, or a folder or a repository in the hub cache with it.
        processor_name_or_path: the model that it was trained from, of which the configuration and the tokenizer are
            read; its weights are not.

    Raises:
        FileNotFoundError, ValueError: as `load_once`; or a sample has no prompt.
    """
    from verl_omni.reward_loop.models.clip_model import load_once, prompts_of
    from verl_omni.reward_loop.models.hpsv2_model import Hpsv2Model
    from verl_omni.reward_loop.video_frames import mean_over_frames

    prompts = prompts_of(extra_infos, "hpsv2")
    clip = load_once(Hpsv2Model, model_name_or_path, processor_name_or_path, device)
    return [score_scale * cosine for cosine in mean_over_frames(solution_images, prompts, clip.cosines)]
