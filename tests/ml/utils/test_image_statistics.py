"""Statistics of pixels, against values that can be computed by hand."""

import io

import pytest
import torch
from PIL import Image

from verl_omni.utils.metrics.image_statistics import measure, thumbnail_diversity


def plain(*color: int, size: int = 32) -> torch.Tensor:
    """uint8 [3, size, size] of one color."""
    return torch.tensor(color, dtype=torch.uint8)[:, None, None].expand(3, size, size).clone()


def test_images_of_one_color() -> None:
    black = measure(plain(0, 0, 0))
    white = measure(plain(255, 255, 255))
    red = measure(plain(255, 0, 0))
    gray = measure(plain(128, 128, 128))
    assert (black.luminance, black.dark, black.clipped, black.saturation) == (0.0, 1.0, 1.0, 0.0)
    assert (white.luminance, white.dark, white.clipped, white.saturation) == (pytest.approx(1.0), 0.0, 1.0, 0.0)
    assert (red.luminance, red.dark, red.saturation) == (pytest.approx(0.2126), 0.0, 1.0)
    assert (gray.luminance, gray.dark, gray.clipped) == (pytest.approx(128 / 255), 0.0, 0.0)
    assert {statistics.edges for statistics in (black, white, red, gray)} == {0.0}


def test_halves_and_stripes() -> None:
    half = plain(255, 255, 255)
    half[:, :, :16] = 0
    assert measure(half).dark == 0.5
    stripes = plain(255, 255, 255)
    stripes[:, ::2] = 0
    # All 31 x 32 vertical neighbors differ by 1, and none of as many horizontal ones.
    assert measure(stripes).edges == pytest.approx(0.5)


def test_the_compressed_size_is_that_of_pillows_jpeg() -> None:
    noise = torch.randint(0, 256, (3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    file = io.BytesIO()
    Image.fromarray(noise.permute(1, 2, 0).numpy()).save(file, "JPEG", quality=95)
    assert measure(noise).jpeg_bits == pytest.approx(8 * file.tell() / 1024)
    assert measure(plain(9, 9, 9)).jpeg_bits < measure(noise).jpeg_bits


def test_a_video_has_the_means_of_four_frames_and_other_formats_are_read_as_rgb() -> None:
    frames = torch.stack([plain(0, 0, 0), *[plain(255, 255, 255)] * 6])
    assert measure(frames).luminance == pytest.approx(0.75)
    assert measure(torch.zeros(1, 8, 8)).dark == measure(torch.zeros(4, 8, 8)).dark == 1.0
    assert measure(plain(0, 0, 0, size=1)).edges == 0.0


def test_diversity_is_the_spread_of_the_samples() -> None:
    black = measure(plain(0, 0, 0))
    white = measure(plain(255, 255, 255))
    assert thumbnail_diversity([black, black]) == 0.0
    assert thumbnail_diversity([black, white]) == pytest.approx(0.5)
