"""PURE: what the engine returns -> `DiffusionOutput`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from PIL import Image
from torchvision.transforms.functional import pil_to_tensor

from verl_omni.workers.rollout.replica import DiffusionOutput

STOP_REASONS = {"abort": "aborted", "stop": "completed", "length": "completed"}


def stop_reason(finish_reason: str | None) -> str | None:
    """verl's word for vLLM's `finish_reason`; words that neither knows pass through."""
    return STOP_REASONS.get(finish_reason, finish_reason) if finish_reason is not None else None


def pixels(image: Any) -> torch.Tensor:
    """Pixels as uint8 of the same shape; PIL images become [C, H, W].

    Args:
        image: uint8 tensor, float tensor or array in [0, 1] (clamped), or a PIL image.

    Raises:
        ValueError: a pixel is not finite.
    """
    if isinstance(image, Image.Image):
        return pil_to_tensor(image)
    tensor = torch.as_tensor(np.asarray(image)) if not isinstance(image, torch.Tensor) else image
    if tensor.dtype == torch.uint8:
        return tensor.detach().cpu()
    tensor = tensor.detach().to(device="cpu", dtype=torch.float32)
    if not bool(torch.isfinite(tensor).all()):
        raise ValueError("Pixel rollout output must contain only finite values")
    return tensor.clamp(0, 1).mul(255).round().to(torch.uint8)


def diffusion_output(result: Any, *, latent: bool, log_probs: bool, global_steps: int | None) -> DiffusionOutput:
    """Turn the engine's last output of one request into a sample.

    Args:
        result: `OmniRequestOutput`, or None when the request ended without any.
        latent: the caller asked for latents, which stay float32.
        log_probs: the caller asked for log-probabilities.
        global_steps: version of the weights that made the sample.

    Raises:
        ValueError: pixels are not finite, or two sources give the same trajectory field.
    """
    images = list(getattr(result, "images", None) or [])
    if not images:
        reason = stop_reason(_finish_reason(result, default="abort"))
        return aborted(latent=latent, global_steps=global_steps).model_copy(update={"stop_reason": reason})
    image = images[0]
    extra = _trajectory(result)
    found = extra.pop("log_probs", None)
    return DiffusionOutput(
        diffusion_output=_unbatched(torch.as_tensor(image)).float().cpu() if latent else _unbatched(pixels(image)),
        log_probs=found if log_probs else None,
        stop_reason=stop_reason(_finish_reason(result, default="stop")),
        num_preempted=getattr(result, "num_preempted", None),
        extra_fields={**extra, "global_steps": global_steps},
    )


def aborted(*, latent: bool, global_steps: int | None) -> DiffusionOutput:
    """A sample that was cut off: empty, with the version of the weights it would have used."""
    empty = torch.empty(0, dtype=torch.float32 if latent else torch.uint8)
    return DiffusionOutput(diffusion_output=empty, stop_reason="aborted", extra_fields={"global_steps": global_steps})


def _finish_reason(result: Any, default: str) -> str:
    outputs = getattr(result, "outputs", None) or []
    return (getattr(outputs[0], "finish_reason", None) if outputs else None) or default


def _unbatched(tensor: torch.Tensor) -> torch.Tensor:
    """Drop the engine's leading dimension of one sample.

    [1, C, H, W] -> [C, H, W], [1, T, C, H, W] -> [T, C, H, W]. A video always has that dimension, so that a video of
    one frame stays one.
    """
    return tensor[0] if tensor.ndim in (4, 5) and tensor.shape[0] == 1 else tensor


def _trajectory(result: Any) -> dict[str, torch.Tensor]:
    """Tensors of one sample, without the engine's batch dimension."""
    named = {
        "all_latents": getattr(result, "trajectory_latents", None),
        "all_timesteps": getattr(result, "trajectory_timesteps", None),
        "log_probs": getattr(result, "trajectory_log_probs", None),
    }
    made = {name: value[0].detach().cpu() for name, value in named.items() if isinstance(value, torch.Tensor)}
    metadata = (getattr(result, "multimodal_output", None) or {}).get("metadata") or {}
    for group in ("prompt_embeddings", "rl"):
        for name, value in (metadata.get(group) or {}).items():
            if name in made:
                raise ValueError(f"Duplicate rollout metadata field: {name}")
            made[name] = value[0].detach().cpu() if isinstance(value, torch.Tensor) else value
    return made
