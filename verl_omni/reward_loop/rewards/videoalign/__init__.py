"""Scorer of videos by visual quality, motion and text alignment (VideoReward of VideoAlign, arXiv:2501.13918)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from verl_omni.reward_loop.setting_types import Device, File, ModelFolder, NotNegative

if TYPE_CHECKING:
    from torch import Tensor

MODALITY = "video"
MODEL_CLASS = "verl_omni.reward_loop.models.videoalign_model:VideoAlignModel"
WEIGHTS = "KwaiVGI/VideoReward"
BASE = "Qwen/Qwen2-VL-2B-Instruct"
METRICS = ("visual_quality", "motion_quality", "text_alignment")
WEIGHTS_OF_METRICS = ("vq_weight", "mq_weight", "ta_weight")
Template = Annotated[File, Field(description="prompt_template.py of https://github.com/KwaiVGI/VideoAlign.")]
FramesPerSecond = Annotated[float, Field(gt=0, le=1000, description="Frames per second of the videos, such as 16.")]


def compute_score(
    data_sources: Sequence[str],
    solution_images: Sequence[Tensor],
    ground_truths: Sequence[Any],
    extra_infos: Sequence[Mapping[str, Any]],
    template_path: Template,
    video_fps: FramesPerSecond,
    model_name_or_path: ModelFolder = WEIGHTS,
    processor_name_or_path: ModelFolder = BASE,
    device: Device = "cpu",
    vq_weight: NotNegative = 1.0,
    mq_weight: NotNegative = 1.0,
    ta_weight: NotNegative = 1.0,
) -> list[dict[str, float]]:
    """Weighted sum of `visual_quality`, `motion_quality` and `text_alignment`, each usually -2 to 2; only of videos.

    Args:
        template_path: the file of the authors' repository with the text that the weights were trained with.
        video_fps: frames a second of the videos: the model sees two frames of a second, at least four in all.
        model_name_or_path: a folder or a repository in the hub cache with model_config.json and checkpoint-*/model.pth.
        processor_name_or_path: the base model, a folder or a repository in the hub cache, of which the configuration,
            the tokenizer and the processor are read; its weights are not.
        vq_weight, mq_weight, ta_weight: weights of the three; with 1 for all, the sum is the published "Overall".

    Returns:
        `score`, and the three standardized numbers.

    Raises:
        FileNotFoundError, ValueError: as `load_once`; or a sample is an image or has no prompt, or all weights are 0.
    """
    from verl_omni.reward_loop.models.clip_model import load_once, prompts_of
    from verl_omni.reward_loop.models.videoalign_model import VideoAlignModel

    weights = dict(zip(WEIGHTS_OF_METRICS, (vq_weight, mq_weight, ta_weight), strict=True))
    if problems := conflicts(weights):
        raise ValueError("; ".join(problems))
    prompts = prompts_of(extra_infos, "videoalign", "video")
    model = load_once(VideoAlignModel, model_name_or_path, processor_name_or_path, template_path, device)
    results = []
    for video, prompt in zip(solution_images, prompts, strict=True):  # one at a time: a video has thousands of tokens
        if video.ndim != 4:
            raise ValueError(f"the scorer videoalign takes videos [T, 3, H, W], and got an image {list(video.shape)}")
        rated = dict(zip(METRICS, model.scores(video, prompt, video_fps).tolist(), strict=True))
        score = sum(weight * rating for weight, rating in zip(weights.values(), rated.values(), strict=True))
        results.append({"score": score, **rated})
    return results


def conflicts(given: Mapping[str, Any]) -> list[str]:
    """PURE: messages about settings that do not fit together."""
    if any(given.get(name, 1.0) for name in WEIGHTS_OF_METRICS):
        return []
    return ["vq_weight: is 0, as mq_weight and ta_weight are, so every score is 0; write one above 0"]
