"""Wan: shapes of a sample's tensors."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from verl_omni.pipelines.sample_shapes import Configs, example

if TYPE_CHECKING:
    from torch import Tensor

SPLITS_SEQUENCE = True
# In Stable Diffusion 3 and Qwen-Image, the feed-forward width is a multiple of the number of attention heads.
DIVIDED_BY_ENGINES = {"num_attention_heads": "attention heads", "ffn_dim": "columns of a feed-forward layer"}


def sample(configs: Configs, pipeline: Any, prompt_rows: int) -> dict[str, Tensor]:
    """See `sample_shapes.SampleShapes`."""
    embeds = example(prompt_rows, configs["transformer"]["text_dim"])
    latents = example(*decoder_input(configs, pipeline))
    return {"latents": latents, "prompt_embeds": embeds, "negative_prompt_embeds": embeds}


def sequence_length(configs: Configs, pipeline: Any) -> int:
    """See `sample_shapes.SampleShapes`."""
    patch = configs["transformer"].get("patch_size", (1, 2, 2))
    return math.prod(size // part for size, part in zip(decoder_input(configs, pipeline)[1:], patch, strict=True))


def decoder_input(configs: Configs, pipeline: Any) -> tuple[int, ...]:
    """See `sample_shapes.SampleShapes`."""
    vae = configs["vae"]
    space = vae.get("scale_factor_spatial", 8)
    time = vae.get("scale_factor_temporal", 4)
    frames = pipeline.num_frames // time + 1  # the engine makes 9 frames of 8: a multiple of `time`, and one
    return (configs["transformer"]["in_channels"], frames, pipeline.height // space, pipeline.width // space)


def size_step(configs: Configs) -> int:
    """See `sample_shapes.SampleShapes`."""
    patch = configs["transformer"].get("patch_size", (1, 2, 2))
    return int(configs["vae"].get("scale_factor_spatial", 8) * patch[1])
