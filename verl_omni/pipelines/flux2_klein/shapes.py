"""FLUX.2-klein: shapes of a sample's tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from verl_omni.pipelines.flux.shapes import decoder_input, sequence_length, size_step
from verl_omni.pipelines.sample_shapes import Configs, example

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "DIVIDED_BY_ENGINES",
    "SPLITS_PROMPT",
    "SPLITS_SEQUENCE",
    "decoder_input",
    "sample",
    "sequence_length",
    "size_step",
]

SPLITS_SEQUENCE = True
SPLITS_PROMPT = True
DIVIDED_BY_ENGINES = {"num_attention_heads": "attention heads"}


def sample(configs: Configs, pipeline: Any, prompt_rows: int) -> dict[str, Tensor]:
    """See `sample_shapes.SampleShapes`; latents are packed, 2 x 2 in a patch."""
    import torch

    transformer = configs["transformer"]
    _, height, width = decoder_input(configs, pipeline)
    embeds = example(prompt_rows, transformer["joint_attention_dim"])
    return {
        "latents": example(sequence_length(configs, pipeline), transformer["in_channels"]),
        "image_size": torch.tensor([height // 2, width // 2]),
        "prompt_embeds": embeds,
        "negative_prompt_embeds": embeds,
    }
