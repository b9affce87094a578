"""PURE: conversion of the engine's output into a `DiffusionOutput`."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from verl_omni.utils.pixels import PixelDtype, as_pixels
from verl_omni.workers.rollout.replica import DiffusionOutput

STOP_REASONS = {"abort": "aborted", "stop": "completed", "length": "completed"}
MEDIA = ("video", "image", "output", "audio")  # the first of these keys in a pipeline's dict is the sample
AUDIO_SAMPLE_RATE = 32000  # Hz, default of a pipeline that reports none


@dataclass(frozen=True, slots=True)
class SampleFormat:
    """Requested format of a sample.

    Attributes:
        latent: float32 latents instead of pixels.
        pixel_dtype: dtype of pixels.
        log_probs: whether to return log-probabilities.
    """

    latent: bool = False
    pixel_dtype: PixelDtype = "uint8"
    log_probs: bool = False


@dataclass(frozen=True, slots=True)
class _Media:
    """The generated media as returned by the engine, with the audio of a video."""

    value: Any
    kind: str
    audio: Any = None


def stop_reason(finish_reason: str | None) -> str | None:
    """verl's stop reason for vLLM's `finish_reason`; unknown reasons are unchanged."""
    return STOP_REASONS.get(finish_reason, finish_reason) if finish_reason is not None else None


def to_diffusion_output(result: Any, sample_format: SampleFormat, *, global_steps: int | None) -> DiffusionOutput:
    """Convert the engine's last output of one request.

    Args:
        result: `OmniRequestOutput`, or None if the request ended without an output. Its `images` hold a tensor, an
            array, PIL images (of a video, its frames), a dict with one of `MEDIA`, or a pair of video and audio.
        global_steps: version of the weights when the request was submitted; a version that the engine's worker
            reports takes precedence.

    Returns:
        The sample. The audio of a video is in `extra_fields`: `audio` (float32), and `audio_sample_rate` in Hz.

    Raises:
        ValueError: pixels are not finite, or two sources give the same trajectory field.
    """
    media = _media(result)
    if media is None:
        reason = stop_reason(_finish_reason(result, default="abort"))
        return aborted_output(sample_format, global_steps=global_steps).model_copy(update={"stop_reason": reason})
    extra = _trajectory(result)
    log_probs = extra.pop("log_probs", None)
    version = extra.pop("weights_version", None)
    if media.audio is not None:
        rate = int(_multimodal(result).get("audio_sample_rate") or AUDIO_SAMPLE_RATE)
        extra |= {"audio": _float32(media.audio), "audio_sample_rate": rate}
    return DiffusionOutput(
        diffusion_output=_sample(media, sample_format),
        log_probs=log_probs if sample_format.log_probs else None,
        stop_reason=stop_reason(_finish_reason(result, default="stop")),
        num_preempted=getattr(result, "num_preempted", None),
        extra_fields={**extra, "global_steps": global_steps if version is None else int(version)},
    )


def aborted_output(sample_format: SampleFormat, *, global_steps: int | None) -> DiffusionOutput:
    """An aborted sample: empty, with the version of the weights that it would have used."""
    dtype = torch.float32 if sample_format.latent or sample_format.pixel_dtype == "float32" else torch.uint8
    return DiffusionOutput(
        diffusion_output=torch.empty(0, dtype=dtype), stop_reason="aborted", extra_fields={"global_steps": global_steps}
    )


def _finish_reason(result: Any, default: str) -> str:
    outputs = getattr(result, "outputs", None) or []
    return (getattr(outputs[0], "finish_reason", None) if outputs else None) or default


def _media(result: Any) -> _Media | None:
    images = list(getattr(result, "images", None) or [])
    multimodal = _multimodal(result)
    if not images:  # an audio pipeline
        return _Media(multimodal["audio"], "audio") if multimodal.get("audio") is not None else None
    kind = getattr(result, "final_output_type", "image")
    value: Any = images[0]
    audio: Any = multimodal.get("audio")
    if kind == "video" and len(images) > 1:
        value = images
    if isinstance(value, dict):
        kind = next((name for name in MEDIA if value.get(name) is not None), "output")
        value, audio = value.get(kind), audio if audio is not None else value.get("audio")
    elif isinstance(value, tuple):
        kind = "video"
        (value, audio) = value
    if value is None:
        return None
    return _Media(value, kind, audio if kind != "audio" else None)


def _multimodal(result: Any) -> dict[str, Any]:
    return getattr(result, "multimodal_output", None) or {}


def _sample(media: _Media, sample_format: SampleFormat) -> Tensor:
    if media.kind == "audio":
        return _float32(media.value)
    tensor = _float32(media.value) if sample_format.latent else as_pixels(media.value, sample_format.pixel_dtype)
    # Remove the engine's batch dimension, which latents always have; a video also has a frame dimension.
    batched = sample_format.latent or tensor.ndim == 5 or (tensor.ndim == 4 and media.kind != "video")
    return tensor[0] if batched and tensor.shape[0] == 1 else tensor


def _float32(value: Any) -> Tensor:
    return torch.as_tensor(value).detach().to(device="cpu", dtype=torch.float32)


def _trajectory(result: Any) -> dict[str, Any]:
    """Fields of one sample, without the engine's batch dimension."""
    named = {
        "all_latents": getattr(result, "trajectory_latents", None),
        "all_timesteps": getattr(result, "trajectory_timesteps", None),
        "log_probs": getattr(result, "trajectory_log_probs", None),
    }
    fields = {name: _first(value) for name, value in named.items() if isinstance(value, Tensor)}
    metadata = _multimodal(result).get("metadata") or {}
    for group in ("prompt_embeddings", "rl"):
        for name, value in (metadata.get(group) or {}).items():
            if name in fields:
                raise ValueError(f"Duplicate rollout metadata field: {name}")
            fields[name] = _first(value)
    return fields


def _first(value: Any) -> Any:
    """The first element of a tensor or list of the engine; a scalar, None and an empty list are unchanged."""
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        return value[0] if value.ndim else value
    return value[0] if isinstance(value, list) and value else value
