"""FLUX.1-dev: shapes of a sample's tensors, for `drl fit`."""

from typing import Any

import torch
from torch import Tensor

from verl_omni.pipelines.sample_shapes import Configs, example

SPLITS_SEQUENCE = False


def sample(configs: Configs, pipeline: Any, prompt_rows: int) -> dict[str, Tensor]:
    """Latents and `CONDITIONS` of one sample; latents are packed, 2 x 2 of them in a patch."""
    transformer, (_, height, width) = configs["transformer"], decoder_input(configs, pipeline)
    patches = (height // 2) * (width // 2)
    return {
        "latents": example(patches, transformer["in_channels"]),
        "prompt_embeds": example(prompt_rows, transformer["joint_attention_dim"]),
        "pooled_prompt_embeds": example(transformer["pooled_projection_dim"]),
        "image_ids": example(patches, 3),
        "guidance": example(1),
    }


def decoder_input(configs: Configs, pipeline: Any) -> torch.Size:
    """Latents of one sample that the VAE decodes."""
    vae = configs["vae"]
    factor = 2 ** (len(vae["block_out_channels"]) - 1)
    return torch.Size((vae["latent_channels"], pipeline.height // factor, pipeline.width // factor))
