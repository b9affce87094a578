"""PURE: what the agent loop asks for -> what the engine is given."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from vllm_omni.inputs.data import OmniDiffusionSamplingParams

# `hasattr` on the class would miss fields with a default factory and hit methods.
ENGINE_FIELDS = frozenset(field.name for field in fields(OmniDiffusionSamplingParams)) - {"extra_args"}
# Ours and the engine's words for "pixels, not latents" differ.
OUTPUT_TYPES = {"image": "pil", "video": "pil", "latent": "latent"}


def wants_latent(params: dict[str, Any]) -> bool:
    """Whether the caller asked for latents rather than pixels."""
    nested = params.get("extra_args") or {}
    return (params.get("output_type") or nested.get("output_type")) == "latent"


def sampling_params(params: dict[str, Any]) -> OmniDiffusionSamplingParams:
    """Split `params` into the engine's own fields and `extra_args`, which reach the pipeline untouched.

    None means "not set" and is left to the engine's default. The input is not changed.

    Raises:
        ValueError: `output_type` is neither `image`, `video`, `latent` nor one of the engine's.
    """
    own = {name: value for name, value in params.items() if name in ENGINE_FIELDS and value is not None}
    extra = {name: value for name, value in params.items() if name not in ENGINE_FIELDS}
    nested = extra.pop("extra_args", None) or {}
    if (output := own.get("output_type")) is not None:
        if output not in OUTPUT_TYPES and output not in OUTPUT_TYPES.values():
            raise ValueError(f"Unknown output_type {output!r}; one of {sorted(OUTPUT_TYPES)}")
        own["output_type"] = OUTPUT_TYPES.get(output, output)
    return OmniDiffusionSamplingParams(**own, extra_args={**nested, **extra})


def prompt(
    prompt_ids: list[int],
    *,
    negative_prompt_ids: list[int] | None = None,
    prompt_mask: list[int] | None = None,
    multi_modal_data: dict[str, Any] | None = None,
    several_stages: bool = False,
) -> dict[str, Any]:
    """The engine's prompt for one sample: token ids; the pipeline of the model encodes them."""
    made: dict[str, Any] = {"prompt_token_ids": list(prompt_ids)}
    if prompt_mask is not None:
        made["prompt_mask"] = prompt_mask
    if several_stages:
        made["modalities"] = ["image"]
    if negative_prompt_ids is not None:
        made["negative_prompt_ids"] = list(negative_prompt_ids)
    if multi_modal_data:
        made["multi_modal_data"] = multi_modal_data
        made["extra_args"] = {"multi_modal_data": multi_modal_data}
    return made
