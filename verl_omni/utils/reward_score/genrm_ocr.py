"""The scorer `genrm_ocr` at its import path in the reference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from verl_omni.reward_loop.rewards import genrm_ocr
from verl_omni.utils.pixels import as_pixels


async def compute_score_ocr(
    data_source: str,
    solution_image: Tensor,
    ground_truth: str,
    extra_info: Mapping[str, Any] | None = None,
    reward_router_address: str | None = None,
    reward_model_tokenizer: Any = None,
    model_name: str | None = None,
    **settings: Any,
) -> dict[str, float]:
    """The score of an image by the judge that verl's reward router serves, or that `settings` name.

    Args:
        solution_image: uint8, or floats from 0 to 1, [3, H, W].
        reward_model_tokenizer: not needed; verl passes it.
        settings: of `reward_loop.rewards.genrm_ocr`, whose results and errors these are.
    """
    return await genrm_ocr.compute_score(
        data_source, as_pixels(solution_image), ground_truth, extra_info or {},
        reward_router_address=reward_router_address, model_name=model_name, **settings,
    )  # fmt: skip
