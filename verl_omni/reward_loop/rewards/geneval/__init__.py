"""Scorer of the objects of an image: their number, colors and positions (GenEval, arXiv:2310.11513)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from verl_omni.reward_loop.rewards import check_picture
from verl_omni.reward_loop.setting_types import MODEL, Device, ModelFolder, Share

if TYPE_CHECKING:
    from torch import Tensor

MODALITY = "image"
MODEL_CLASS = "verl_omni.reward_loop.models.object_detector:ObjectDetector"
DETECTOR = "facebook/mask2former-swin-small-coco-instance"
COLORS = "openai/clip-vit-large-patch14"
COLOR_MODEL = "color_model_name_or_path"
Weight = Annotated[Share, Field(description="Weight of 'all conditions hold' against the share of those that hold.")]


def compute_score(
    data_source: str,
    solution_image: Tensor,
    ground_truth: Any,
    extra_info: Mapping[str, Any],
    model_name_or_path: ModelFolder = DETECTOR,
    color_model_name_or_path: ModelFolder = COLORS,
    device: Device = "cpu",
    correct_weight: Weight = 1.0,
) -> dict[str, float]:
    """correct_weight * correct + (1 - correct_weight) * partial, from 0 to 1: whether all conditions of the row
    hold, and the share of those that do.

    Args:
        extra_info: with the columns `tag`, `include` and `exclude` of GenEval's prompts.
        model_name_or_path: a Mask2Former for instances of COCO's classes, a folder or a repository in the hub cache.
        color_model_name_or_path: the CLIP model that names the color of an object.

    Returns:
        `score`, `correct` (0 or 1) and `partial`, for every image.

    Raises:
        FileNotFoundError, ValueError: as `load_once`; or the row's conditions are malformed, or name a class that the
            detector does not know.
    """
    from verl_omni.reward_loop.models.clip_model import ClipModel, load_once
    from verl_omni.reward_loop.models.object_detector import ObjectColors, ObjectDetector

    from .conditions import Conditions

    check_picture(solution_image, "geneval")
    conditions = Conditions.parse(extra_info)
    detector = load_once(ObjectDetector, model_name_or_path, device)
    objects = detector.detect(solution_image, conditions.classes, conditions.least_confidence)
    colors = ObjectColors(
        load=lambda: load_once(ClipModel, color_model_name_or_path, color_model_name_or_path, device),
        image=solution_image,
    )
    held = conditions.check(objects, colors.of)
    correct = float(all(held))
    partial = sum(held) / len(held)
    return {"score": correct_weight * correct + (1 - correct_weight) * partial, "correct": correct, "partial": partial}


def setting_problems(given: Mapping[str, Any]) -> list[str]:
    """Messages about what is missing on this machine."""
    from verl_omni.reward_loop.models.clip_model import ClipModel

    colors = ClipModel.problems(str(given.get(COLOR_MODEL) or COLORS))
    return [problem.replace(MODEL, COLOR_MODEL, 1) for problem in colors]
