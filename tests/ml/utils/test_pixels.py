"""Pixel formats of images and videos."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from verl_omni.utils.pixels import PixelDtype, as_images, as_pixels

# An image of 2 x 5 pixels: its red grows to the right, its green downwards, its blue is full.
CHW = torch.tensor([[range(0, 255, 51)] * 2, [[0] * 5, [204] * 5], [[255] * 5] * 2], dtype=torch.uint8)
HWC = CHW.permute(1, 2, 0).numpy()
FLOAT = CHW.float() / 255


@pytest.mark.parametrize(
    "picture",
    [CHW, FLOAT, FLOAT.to(torch.float64), HWC, HWC.astype(np.float32) / 255, CHW.numpy(), Image.fromarray(HWC)],
    ids=["uint8", "float32", "float64", "array", "float array", "array with channels first", "PIL"],
)
def test_every_image_type_gives_the_same_pixels(picture: Any) -> None:
    pixels = as_pixels(picture)
    assert pixels.dtype == torch.uint8 and torch.equal(pixels, CHW)
    floats = as_pixels(picture, "float32")
    assert floats.dtype == torch.float32
    torch.testing.assert_close(floats, FLOAT)


@pytest.mark.parametrize(
    "video",
    [
        torch.stack([CHW, CHW.flip(-1)]),
        np.stack([HWC, HWC[:, ::-1]]),
        [CHW, CHW.flip(-1)],
        [Image.fromarray(HWC), Image.fromarray(np.ascontiguousarray(HWC[:, ::-1]))],
    ],
    ids=["tensor", "array", "tensors", "PIL frames"],
)
def test_every_video_type_gives_the_same_frames(video: Any) -> None:
    pixels = as_pixels(video)
    assert pixels.shape == (2, 3, 2, 5)
    assert torch.equal(pixels[0], CHW) and torch.equal(pixels[1], CHW.flip(-1))


@given(st.integers(0, 255))
@settings(deadline=None)
def test_conversion_to_float_and_back_is_exact(value: int) -> None:
    byte = torch.tensor([[[value]]], dtype=torch.uint8)
    assert torch.equal(as_pixels(as_pixels(byte, "float32")), byte)


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_values_are_clamped_and_non_finite_values_refused(dtype: PixelDtype) -> None:
    pixels = as_pixels(torch.tensor([[[-0.5, 1.5]]]), dtype)
    assert pixels.flatten().tolist() == ([0, 255] if dtype == "uint8" else [0.0, 1.0])
    for bad in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="only finite"):
            as_pixels(torch.tensor([[[bad]]]), dtype)


def test_pil_images_have_the_same_pixels() -> None:
    images = as_images(torch.stack([CHW, CHW.flip(-1)]))
    assert [image.size for image in images] == [(5, 2), (5, 2)]
    assert np.array_equal(np.asarray(images[0]), HWC)
