"""Qwen-Image-Edit: shapes of a sample's tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from verl_omni.pipelines.qwen_image.shapes import decoder_input, size_step
from verl_omni.pipelines.qwen_image.shapes import sample as without_image
from verl_omni.pipelines.qwen_image_edit import images
from verl_omni.pipelines.sample_shapes import Configs, example

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "DIVIDED_BY_ENGINES",
    "SPLITS_SEQUENCE",
    "decoder_input",
    "encoder_input",
    "sample",
    "sequence_length",
    "size_step",
]

SPLITS_SEQUENCE = True
DIVIDED_BY_ENGINES = {"num_attention_heads": "attention heads"}


def sample(configs: Configs, pipeline: Any, prompt_rows: int) -> dict[str, Tensor]:
    """See `sample_shapes.SampleShapes`."""
    import torch

    tensors = without_image(configs, pipeline, prompt_rows)
    (rows, columns) = image_patches(configs, pipeline)
    return {
        **tensors,
        "img_shapes": torch.stack([tensors["img_shapes"], torch.tensor([1, rows, columns])]),
        "image_latents": example(rows * columns, configs["transformer"]["in_channels"]),
    }


def encoder_input(configs: Configs, pipeline: Any) -> tuple[int, ...]:
    """See `sample_shapes.SampleShapes`: the input image."""
    limit = images.processor_limit(configs["processor"]) if "processor" in configs else images.LATENT_PIXELS
    width, height = images.resized((pipeline.width, pipeline.height), min(images.LATENT_PIXELS, limit))
    return (3, 1, height, width)


def image_patches(configs: Configs, pipeline: Any) -> tuple[int, int]:
    """Rows and columns of patches of the input image."""
    factor = size_step(configs)
    height, width = encoder_input(configs, pipeline)[-2:]
    return height // factor, width // factor


def sequence_length(configs: Configs, pipeline: Any) -> int:
    """See `sample_shapes.SampleShapes`: patches of the sample and of the input image."""
    tensors = sample(configs, pipeline, 1)
    return sum(len(tensors[name]) for name in ("latents", "image_latents"))
