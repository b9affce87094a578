"""The scorer `pickscore` at its import path in the reference."""

from typing import Any

from torch import Tensor

from verl_omni.utils.reward_score import default_compute_score_image

SCALE = 1 / 26  # as in the reference and in Flow-GRPO


def compute_score_pickscore(
    data_source: str, solution_image: Tensor, ground_truth: Any, extra_info: dict[str, Any] | None = None, **kwargs: Any
) -> float:
    """PickScore of an image and the `prompt` of `extra_info`, on the reference's scale unless `score_scale` is given.

    Args:
        data_source, ground_truth: not read. kwargs: settings of the scorer; those that it does not take are dropped.
    """
    settings = {"score_scale": SCALE} | kwargs
    return float(default_compute_score_image("pickscore", solution_image, ground_truth, extra_info, **settings))
