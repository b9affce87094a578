"""PURE: the tensors of a sample that training reads, separated from the fields that the driver reads."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from verl_omni.pipelines.registry import NEGATIVE

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
UNSCORED = "unscored"  # column with references of samples that are scored later: `prompts` and `responses`, [1, ...]


@dataclass(frozen=True, slots=True)
class TrainingTensors:
    """The training tensors of one sample, without a batch dimension.

    Attributes:
        own: tensors of this sample alone.
        shared: tensors of all samples of a prompt, by the prompt's key.
    """

    own: dict[str, Tensor]
    shared: dict[str, dict[str, Tensor]]


def training_tensors(
    fields: Mapping[str, Any], log_probs: Tensor | None, conditions: Collection[str], keys: tuple[str, str] | None
) -> TrainingTensors:
    """Select and group the tensors that training reads.

    Args:
        fields: `extra_fields` of a sample. log_probs: its `response_logprobs`.
        conditions: names of the family's conditions.
        keys: keys of the prompt and the negative prompt; None: nothing is shared.
    """
    found = {name: value for name, value in fields.items() if isinstance(value, Tensor)}
    if log_probs is not None:
        found["rollout_log_probs"] = log_probs
    own = {name: found[name] for name in RECORDED if name in found}
    given = {name: found[name] for name in conditions if name in found}
    if keys is None:
        return TrainingTensors({**own, **given}, {})
    negative = {name: value for name, value in given.items() if name.startswith(NEGATIVE)}
    positive = {name: value for name, value in given.items() if name not in negative}
    groups = zip(keys, (positive, negative), strict=True)
    return TrainingTensors(own, {key: tensors for key, tensors in groups if tensors})
