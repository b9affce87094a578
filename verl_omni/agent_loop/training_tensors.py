"""PURE: the tensors of a sample that training reads, separated from the fields that the driver reads."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor

# Recorded tensors, as far as the algorithm requests them; the model family's conditions come on top.
RECORDED = (
    "clean_latents",
    "sampler_levels",
    "all_latents",
    "all_timesteps",
    "all_sigmas",
    "sigma_max",
    "rollout_log_probs",
    "velocity_projections",
)
FOR_THE_DRIVER = ("global_steps", "min_global_steps", "max_global_steps")
STATISTICS = "image_statistics"  # column with the `ImageStatistics` of each sample; None of latents
KEEPS_PICTURE = "_keeps_picture"  # column of a request: whether the result has the pixels, as column `picture`
PICTURE = "picture"
UNSCORED = "unscored"  # column with references of samples that are scored later: `prompts` and `responses`, [1, ...]


def training_tensors(
    fields: Mapping[str, Any], log_probs: Tensor | None, conditions: Collection[str]
) -> dict[str, Tensor]:
    """Select the tensors of a sample that training reads, without a batch dimension.

    Args:
        fields: `extra_fields` of a sample. log_probs: its `response_logprobs`.
        conditions: names of the family's conditions.
    """
    found = {name: value for name, value in fields.items() if isinstance(value, Tensor)}
    if log_probs is not None:
        found["rollout_log_probs"] = log_probs
    return {name: found[name] for name in (*RECORDED, *conditions) if name in found}
