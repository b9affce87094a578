"""PURE: statistics of a sample's pixels that show what a reward does not measure, such as images that become dark."""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from verl_omni.utils.pixels import as_pixels, jpeg_size

LUMA = (0.2126, 0.7152, 0.0722)  # weights of red, green and blue, ITU-R BT.709
DARK = 0.2  # a pixel with less luminance is dark
QUALITY = 95  # of the JPEG, as of the scorer `jpeg_compressibility`
THUMBNAIL = 16  # pixels
MOST_FRAMES = 4  # of a video, evenly spaced


@dataclass(frozen=True, slots=True)
class ImageStatistics:
    """Statistics of an image, or the means over frames of a video; shares and luminance are from 0 to 1."""

    luminance: float
    """Mean luminance of the gamma-encoded pixels."""
    dark: float
    """Share of pixels with a luminance below `DARK`."""
    clipped: float
    """Share of color values that are 0 or 255."""
    edges: float
    """Mean absolute difference of luminance between neighboring pixels."""
    saturation: float
    """Mean saturation, as in HSV."""
    jpeg_bits: float
    """Bits per pixel as a JPEG of quality 95."""
    thumbnail: np.ndarray[Any, np.dtype[np.uint8]]
    """The first frame, uint8 [3, 16, 16], from which the diversity of a prompt's samples is computed."""

    def numbers(self) -> dict[str, float]:
        """The statistics by name, without the thumbnail."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "thumbnail"}


def measure(sample: Any) -> ImageStatistics:
    """The statistics of an image [C, H, W] or a video [T, C, H, W], as `as_pixels` takes them.

    Raises:
        ValueError: a pixel is not finite.
    """
    pixels = as_pixels(sample)
    frames = pixels[None] if pixels.ndim == 3 else pixels
    places = torch.linspace(0, len(frames) - 1, min(len(frames), MOST_FRAMES)).round().long()
    colored = [_as_rgb(frames[index]) for index in places]
    measured = [_measure_frame(frame) for frame in colored]
    means = {name: float(np.mean([values[name] for values in measured])) for name in measured[0]}
    small = adaptive_avg_pool2d(colored[0].float(), THUMBNAIL).round().to(torch.uint8)
    return ImageStatistics(**means, thumbnail=small.numpy())


def thumbnail_diversity(statistics: list[ImageStatistics]) -> float:
    """Mean pixel standard deviation across the thumbnails of a prompt's samples, from 0 to 1."""
    return float(np.stack([sample.thumbnail for sample in statistics]).astype(np.float64).std(axis=0).mean() / 255)


def _as_rgb(frame: Tensor) -> Tensor:
    """uint8 [3, H, W] of grayscale, RGB or RGBA."""
    return frame[:3] if len(frame) >= 3 else frame[:1].expand(3, -1, -1)


def _measure_frame(frame: Tensor) -> dict[str, float]:
    """Statistics of uint8 [3, H, W]."""
    colors = frame.float() / 255
    luminance = torch.tensordot(torch.tensor(LUMA), colors, dims=1)
    highest = colors.amax(0)
    spread = highest - colors.amin(0)
    differences = [luminance.diff(dim=axis).abs().flatten() for axis in (0, 1)]
    edges = torch.cat(differences)
    return {
        "luminance": luminance.mean().item(),
        "dark": (luminance < DARK).float().mean().item(),
        "clipped": ((frame == 0) | (frame == 255)).float().mean().item(),
        "edges": edges.mean().item() if len(edges) else 0.0,
        "saturation": torch.where(highest > 0, spread / highest.clamp(min=1 / 255), 0.0).mean().item(),
        "jpeg_bits": 8 * jpeg_size(frame, QUALITY) / luminance.numel(),
    }
