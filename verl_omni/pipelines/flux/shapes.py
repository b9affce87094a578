"""FLUX.1-dev: shapes of a sample's tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from verl_omni.pipelines.sample_shapes import Configs, example

if TYPE_CHECKING:
    from torch import Tensor

SPLITS_SEQUENCE = True
SPLITS_PROMPT = True
DIVIDED_BY_ENGINES = {"num_attention_heads": "attention heads"}


def sample(configs: Configs, pipeline: Any, prompt_rows: int) -> dict[str, Tensor]:
    """See `sample_shapes.SampleShapes`; latents are packed, 2 x 2 in a patch."""
    import torch

    transformer = configs["transformer"]
    _, height, width = decoder_input(configs, pipeline)
    return {
        "latents": example(sequence_length(configs, pipeline), transformer["in_channels"]),
        "prompt_embeds": example(prompt_rows, transformer["joint_attention_dim"]),
        "pooled_prompt_embeds": example(transformer["pooled_projection_dim"]),
        "image_size": torch.tensor([height // 2, width // 2]),
        "guidance": example(1),
    }


def sequence_length(configs: Configs, pipeline: Any) -> int:
    """See `sample_shapes.SampleShapes`."""
    _, height, width = decoder_input(configs, pipeline)
    return (height // 2) * (width // 2)


def decoder_input(configs: Configs, pipeline: Any) -> tuple[int, ...]:
    """See `sample_shapes.SampleShapes`."""
    factor = size_step(configs) // 2
    return (configs["vae"]["latent_channels"], pipeline.height // factor, pipeline.width // factor)


def size_step(configs: Configs) -> int:
    """See `sample_shapes.SampleShapes`."""
    return int(2 ** len(configs["vae"]["block_out_channels"]))
