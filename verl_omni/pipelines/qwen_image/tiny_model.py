"""A tiny random Qwen-Image: made offline, deterministic by seed."""

from pathlib import Path
from typing import Any

import torch
from diffusers import (
    AutoencoderKLQwenImage,
    FlowMatchEulerDiscreteScheduler,
    QwenImagePipeline,
    QwenImageTransformer2DModel,
)

from verl_omni.models import text
from verl_omni.models.saving import save
from verl_omni.models.tiny_parts import CONTRAST, HIDDEN, WIDTH, WORDS


def make_tiny_qwen_image(path: Path, seed: int = 0) -> None:
    """Write the model: a transformer of 89 thousand parameters, a VAE with a factor of 8, a text encoder."""
    make_qwen_image(path, seed, QwenImagePipeline, text.qwen_tokenizer(WORDS))


def make_qwen_image(path: Path, seed: int, pipeline_class: Any, tokenizer: Any, **transformer_config: Any) -> None:
    """Write a model with another pipeline or tokenizer.

    Args:
        transformer_config: changes to the transformer's configuration.
    """
    channels = 4
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        transformer = QwenImageTransformer2DModel(
            in_channels=4 * channels,
            out_channels=channels,
            num_layers=2,
            attention_head_dim=HIDDEN // 2,
            num_attention_heads=2,
            joint_attention_dim=WIDTH,
            axes_dims_rope=(4, 6, 6),
            **transformer_config,
        )
        torch.nn.init.normal_(transformer.proj_out.weight, std=0.1)
        vae = AutoencoderKLQwenImage(
            base_dim=8,
            z_dim=channels,
            dim_mult=[1, 1, 1, 1],
            num_res_blocks=1,
            latents_mean=[0.0] * channels,
            latents_std=[1.0] * channels,
        )
    with torch.no_grad():
        vae.decoder.conv_out.weight *= CONTRAST
        vae.encoder.conv_out.weight *= CONTRAST
    pipeline = pipeline_class(
        transformer=transformer.eval(),
        scheduler=FlowMatchEulerDiscreteScheduler(
            use_dynamic_shifting=True, max_shift=0.9, max_image_seq_len=8192, shift_terminal=0.02
        ),
        vae=vae.eval(),
        text_encoder=text.qwen_encoder(tokenizer, WIDTH, seed=seed + 1),
        tokenizer=tokenizer,
    )
    save(pipeline, path)
