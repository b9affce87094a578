"""Stable Diffusion 3: shapes of a sample's tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from verl_omni.pipelines.sample_shapes import Configs, example

if TYPE_CHECKING:
    from torch import Tensor

SPLITS_SEQUENCE = False
POSITIONS = 96  # default of SD3Transformer2DModel
DIVIDED_BY_ENGINES = {"num_attention_heads": "attention heads"}


def sample(configs: Configs, pipeline: Any, prompt_rows: int) -> dict[str, Tensor]:
    """See `sample_shapes.SampleShapes`."""
    transformer = configs["transformer"]
    factor = 2 ** (len(configs["vae"]["block_out_channels"]) - 1)
    embeds = example(prompt_rows, transformer["joint_attention_dim"])
    pooled = example(transformer["pooled_projection_dim"])
    return {
        "latents": example(transformer["in_channels"], pipeline.height // factor, pipeline.width // factor),
        "prompt_embeds": embeds,
        "pooled_prompt_embeds": pooled,
        "negative_prompt_embeds": embeds,
        "negative_pooled_prompt_embeds": pooled,
    }


def decoder_input(configs: Configs, pipeline: Any) -> tuple[int, ...]:
    """See `sample_shapes.SampleShapes`."""
    return sample(configs, pipeline, 1)["latents"].shape


def size_step(configs: Configs) -> int:
    """See `sample_shapes.SampleShapes`."""
    return int(2 ** (len(configs["vae"]["block_out_channels"]) - 1) * configs["transformer"]["patch_size"])


def longest_side(configs: Configs) -> int:
    """See `sample_shapes.SampleShapes`."""
    return int(configs["transformer"].get("pos_embed_max_size") or POSITIONS) * size_step(configs)
