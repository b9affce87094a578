"""PURE: conversion of a request of the agent loop into prompt and sampling parameters of the engine."""

import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any, cast

from verl.utils.tokenizer import normalize_token_ids
from vllm_omni.inputs.data import OmniDiffusionSamplingParams

from verl_omni.compat import whole_batches
from verl_omni.utils.pixels import PixelDtype
from verl_omni.workers.config import DiffusionPipelineConfig, DiffusionRolloutAlgoConfig
from verl_omni.workers.rollout.vllm_rollout.server.outputs import SampleFormat

# `hasattr` on the class would miss fields with a default factory and hit methods.
ENGINE_FIELDS = frozenset(field.name for field in fields(OmniDiffusionSamplingParams)) - {"extra_args"}
# All but `latent` are pixels, for which the engine is asked for `pt`; its default, PIL images, is for HTTP.
OUTPUT_TYPES = ("image", "video", "pt", "np", "pil", "latent")
PIXEL_DTYPES = ("uint8", "float32")
VIDEO_SHIFT = "video_flow_shift"
# What the pipelines of this package read of a request. `sample_solver` is of vLLM-Omni's Wan.
READ = (
    ENGINE_FIELDS
    | {field.name for kind in (DiffusionPipelineConfig, DiffusionRolloutAlgoConfig) for field in fields(kind)}
    | {"extra_args", "flow_shift", "finished_steps", "global_steps", "logprobs", "sample_solver", "sde_noise_seed"}
    | {"weights_version", whole_batches.CALL, whole_batches.PART}
)


@dataclass(frozen=True, slots=True)
class RolloutRequest:
    """A request of the agent loop, without its sampling parameters.

    Attributes:
        prompt_ids: token ids of the model's first tokenizer.
        prompt_text, negative_prompt_text: the texts, for models whose text encoders tokenize for themselves; None: the
            text of the ids.
        prompt_mask: attention mask, 1 for each id to attend to; the others, such as padding, are removed. None: all.
        extra_prompt_ids: token ids for other encoders, by the encoder's name; for model families of users only.
        image_data, video_data, audio_data: parts of the prompt.
        mm_processor_kwargs: arguments of the model's processor for those parts.
    """

    prompt_ids: list[int]
    negative_prompt_ids: list[int] | None = None
    prompt_text: str | None = None
    negative_prompt_text: str | None = None
    prompt_mask: list[int] | None = None
    extra_prompt_ids: Mapping[str, list[int]] | None = None
    negative_extra_prompt_ids: Mapping[str, list[int]] | None = None
    image_data: list[Any] | None = None
    video_data: list[Any] | None = None
    audio_data: list[Any] | None = None
    mm_processor_kwargs: dict[str, Any] | None = None

    def media(self) -> dict[str, list[Any]]:
        """Images, videos and audio of the prompt, as vLLM's `multi_modal_data`."""
        parts = {"image": self.image_data, "video": self.video_data, "audio": self.audio_data}
        return {name: value for name, value in parts.items() if value is not None}


def sample_format(params: Mapping[str, Any]) -> SampleFormat:
    """The requested format of the sample; `output_type` and `pixel_dtype` may also be in `extra_args`.

    Raises:
        ValueError: an unknown value.
    """
    output_type = _param_or_extra(params, "output_type") or "image"
    pixel_dtype = _param_or_extra(params, "pixel_dtype") or "uint8"
    if output_type not in OUTPUT_TYPES:
        raise ValueError(f"Unknown output_type {output_type!r}; one of {', '.join(OUTPUT_TYPES)}")
    if pixel_dtype not in PIXEL_DTYPES:
        raise ValueError(f"Unknown pixel_dtype {pixel_dtype!r}; one of {sorted(PIXEL_DTYPES)}")
    return SampleFormat(
        latent=output_type == "latent",
        pixel_dtype=cast(PixelDtype, pixel_dtype),
        log_probs=bool(params.get("logprobs")),
    )


def engine_sampling_params(params: Mapping[str, Any]) -> OmniDiffusionSamplingParams:
    """Split `params` into the engine's own fields and `extra_args`, which the pipeline receives unchanged.

    None means "not set": the engine's default applies. The input is not modified.

    Raises:
        ValueError: unknown `output_type` or `pixel_dtype`.
    """
    sample = sample_format(params)
    values = {name: value for name, value in params.items() if name in ENGINE_FIELDS and value is not None}
    extra = {name: value for name, value in params.items() if name not in ENGINE_FIELDS | {"extra_args", VIDEO_SHIFT}}
    if params.get(VIDEO_SHIFT) is not None:
        extra["flow_shift"] = params[VIDEO_SHIFT]  # the engine's name, which keeps other shifts out of a batch
    values["output_type"] = "latent" if sample.latent else "pt"
    if values.get("true_cfg_scale") == 0:
        values["true_cfg_scale"] = 1.0  # no guidance either; the engine takes 0 for "not set", whose default is 4
    nested = params.get("extra_args") or {}
    ours = {"pixel_dtype": sample.pixel_dtype, "weights_version": True}
    return OmniDiffusionSamplingParams(**values, extra_args={**nested, **extra, **ours})


def describe_unread(params: Collection[str]) -> dict[str, str]:
    """A sentence about each sampling parameter that no pipeline of this package reads, by its name."""
    sentences = {}
    for name in set(params) - READ:
        near = difflib.get_close_matches(name, sorted(READ), n=1)
        sentences[name] = f"no model reads the sampling parameter {name}" + (
            f"; did you mean {near[0]}?" if near else ""
        )
    return sentences


def check_extra_ids(request: RolloutRequest, reader: str, *, reads: bool) -> None:
    """Refuse token ids for other encoders where nothing reads them: the sample would be of another prompt.

    Args:
        reader: what would have to read them, for the message.

    Raises:
        ValueError: there are some.
    """
    has_extra_ids = request.extra_prompt_ids is not None or request.negative_extra_prompt_ids is not None
    if has_extra_ids and not reads:
        raise ValueError(
            f"extra_prompt_ids are not read: {reader} tokenizes the prompt for each of its text encoders itself; send "
            "prompt_ids alone, with prompt_text where they lose something of the text"
        )


def attended_ids(request: RolloutRequest) -> list[int]:
    """Token ids of the prompt, without those that `prompt_mask` masks.

    Raises:
        ValueError: `prompt_mask` has another length than `prompt_ids`.
    """
    ids = cast(list[int], normalize_token_ids(request.prompt_ids))
    if request.prompt_mask is None:
        return ids
    mask = normalize_token_ids(request.prompt_mask)
    if len(mask) != len(ids):
        raise ValueError(f"prompt_mask has {len(mask)} values for {len(ids)} prompt_ids")
    return [number for number, attended in zip(ids, mask, strict=True) if attended]


def engine_prompt(request: RolloutRequest, *, several_stages: bool = False) -> dict[str, Any]:
    """The engine's prompt for one sample: token ids, which the model's pipeline encodes, without the masked ones.

    Raises:
        ValueError: `prompt_mask` has another length than `prompt_ids`.
    """
    prompt: dict[str, Any] = {"prompt_token_ids": attended_ids(request)}
    if several_stages:
        prompt["modalities"] = ["image"]
    if request.negative_prompt_ids is not None:
        prompt["negative_prompt_ids"] = normalize_token_ids(request.negative_prompt_ids)
    texts = {"prompt_text": request.prompt_text, "negative_prompt_text": request.negative_prompt_text}
    prompt |= {name: text for name, text in texts.items() if text is not None}
    for name, ids in (
        ("extra_prompt_ids", request.extra_prompt_ids),
        ("negative_extra_prompt_ids", request.negative_extra_prompt_ids),
    ):
        if ids is not None:
            prompt[name] = {encoder: normalize_token_ids(token_ids) for encoder, token_ids in ids.items()}
    if request.mm_processor_kwargs:
        prompt["mm_processor_kwargs"] = request.mm_processor_kwargs
    if media := request.media():
        prompt["multi_modal_data"] = media
        prompt["extra_args"] = {"multi_modal_data": media}
    return prompt


def _param_or_extra(params: Mapping[str, Any], name: str) -> Any:
    return params.get(name) or (params.get("extra_args") or {}).get(name)
