"""PURE: conversion of images and videos to the two pixel formats of samples."""

import io
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms.functional import pil_to_tensor

PixelDtype = Literal["uint8", "float32"]
BOTH = "both"  # output type of evaluations whose scorer takes latents, and whose pictures are shown
COLORS = (1, 3, 4)  # channels of grayscale, RGB and RGBA


def as_pixels(media: Any, dtype: PixelDtype = "uint8") -> Tensor:
    """Convert to pixels in CPU memory: uint8 from 0 to 255, or float32 from 0 to 1.

    Args:
        media: a tensor [..., C, H, W]; an array with channels last, as diffusers returns it, or before height and
            width; a PIL image; or a list of PIL images or tensors, the frames of a video. Values of other dtypes than
            uint8 are clamped to the range from 0 to 1.

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
    """Convert uint8 pixels [B, 3, H, W] to PIL images."""
    return [Image.fromarray(image.permute(1, 2, 0).contiguous().cpu().numpy()) for image in pixels]


def jpeg_size(image: Tensor, quality: int) -> int:
    """Bytes of an image, uint8 [3, H, W], as a JPEG."""
    file = io.BytesIO()
    Image.fromarray(image.permute(1, 2, 0).contiguous().numpy()).save(file, "JPEG", quality=quality)
    return len(file.getvalue())


def _tensor(media: Any) -> Tensor:
    if isinstance(media, Tensor):
        return media
    if isinstance(media, Image.Image):
        return pil_to_tensor(media)
    array = np.asarray(media)
    return torch.from_numpy(np.moveaxis(array, -1, -3).copy() if array.shape[-1] in COLORS else array)
