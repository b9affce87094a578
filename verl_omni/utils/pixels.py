"""PURE: pictures and videos in the two forms that samples carry them in."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms.functional import pil_to_tensor

PixelDtype = Literal["uint8", "float32"]
COLORS = (1, 3, 4)  # channels of grey, colored and transparent pixels


def as_pixels(media: Any, dtype: PixelDtype = "uint8") -> Tensor:
    """Pixels on the host: uint8 from 0 to 255, or float32 from 0 to 1.

    Args:
        media: a tensor [..., C, H, W]; an array with its channels last, as diffusers makes it, or before height and
            width; a PIL image; or a list of PIL images or tensors, the frames of a video. What is not uint8 is taken
            to be from 0 to 1, and clamped.

    Returns:
        [..., C, H, W]; frames become [T, C, H, W].

    Raises:
        ValueError: a pixel is not finite.
    """
    if isinstance(media, list):
        return torch.stack([as_pixels(frame, dtype) for frame in media])
    tensor = _tensor(media).detach().cpu()
    if tensor.dtype == torch.uint8:
        return tensor if dtype == "uint8" else tensor.to(torch.float32) / 255
    tensor = tensor.to(torch.float32)
    if not bool(torch.isfinite(tensor).all()):
        raise ValueError("Pixel rollout output must contain only finite values")
    tensor = tensor.clamp(0, 1)
    return tensor if dtype == "float32" else tensor.mul(255).round().to(torch.uint8)


def as_images(pixels: Tensor) -> list[Image.Image]:
    """uint8 pixels [B, 3, H, W] as PIL images."""
    return [Image.fromarray(each.permute(1, 2, 0).contiguous().cpu().numpy()) for each in pixels]


def _tensor(media: Any) -> Tensor:
    if isinstance(media, Tensor):
        return media
    if isinstance(media, Image.Image):
        return pil_to_tensor(media)
    array = np.asarray(media)
    return torch.from_numpy(np.moveaxis(array, -1, -3).copy() if array.shape[-1] in COLORS else array)
