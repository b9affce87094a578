"""Qwen-Image-Edit: sizes of input images."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verl_omni.utils.model_folder import processor_config

COUNT = 1
# upstream's `VAE_IMAGE_SIZE` and the multiple of its sides
LATENT_PIXELS = 1024 * 1024
MULTIPLE = 32


def resized(size: tuple[int, int], pixels: int) -> tuple[int, int]:
    """Width and height of an image of about `pixels` pixels with nearly the same aspect ratio (`calculate_dimensions`).

    Args:
        size: width and height of the image before.
    """
    width, height = size
    wide = math.sqrt(pixels * width / height)
    return round(wide / MULTIPLE) * MULTIPLE, round(wide * height / width / MULTIPLE) * MULTIPLE


def limit(model: Path) -> int:
    """Maximum number of pixels of an input image, from the processor in a model's folder.

    It is larger than `LATENT_PIXELS` in released models.

    Raises:
        FileNotFoundError: the model has no processor.
    """
    if (config := processor_config(model)) is None:
        raise FileNotFoundError(f"{model} has no processor of images: an editing model in diffusers' layout has one")
    return processor_limit(config)


def processor_limit(config: Mapping[str, Any]) -> int:
    """`limit`, from the configuration of the processor."""
    processor = config.get("image_processor", config)
    return int((processor.get("size") or {}).get("longest_edge") or processor.get("max_pixels") or LATENT_PIXELS)


def problem(size: tuple[int, int], pipeline: Any) -> str | None:
    """Why a prompt cannot have an input image of this size; see `input_images.InputImages`.

    Samples of one batch have input latents of one shape, so every input image has the aspect ratio of the output.
    """
    if resized(size, LATENT_PIXELS) == resized((pipeline.width, pipeline.height), LATENT_PIXELS):
        return None
    return (
        f"its {size[0]} x {size[1]} pixels have another aspect ratio than the generated image of {pipeline.width} x "
        f"{pipeline.height}: crop or pad the image, or change rollout.pipeline.width and height"
    )
