"""Tiny random Wans: made offline, deterministic by seed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKLWan, UniPCMultistepScheduler, WanPipeline, WanTransformer3DModel

from verl_omni.models import text
from verl_omni.models.saving import save
from verl_omni.models.tiny_parts import CONTRAST, HIDDEN, TEXT_LENGTH, WIDTH, WORDS


def make_tiny_wan(path: Path, seed: int = 0) -> None:
    """Write the model: a transformer of 38 thousand parameters, a VAE with factors of 4 x 8 x 8, a text encoder."""
    _make_wan(path, seed, 4, {"dim_mult": [1, 1, 1, 1]})


def make_tiny_wan_5b(path: Path, seed: int = 0) -> None:
    """Write the model like Wan 2.2 TI2V 5B: `expand_timesteps`, and a residual VAE with factors of 4 x 16 x 16.

    Its last factor of 2 is of pixels: the VAE takes and gives patches of 2 x 2.
    """
    patches = {"patch_size": 2, "in_channels": 12, "out_channels": 12, "scale_factor_spatial": 16}
    vae = {"dim_mult": [1, 1, 1, 1], "decoder_base_dim": 12, "is_residual": True, **patches}
    _make_wan(path, seed, 6, vae, expand_timesteps=True)


def make_tiny_wan_a14b(path: Path, seed: int = 0) -> None:
    """Write the model like Wan 2.2 A14B: as `make_tiny_wan`, with a second transformer for low noise levels."""
    _make_wan(path, seed, 4, {"dim_mult": [1, 1, 1, 1]}, transformers=2, boundary_ratio=0.875)


def _make_wan(
    path: Path,
    seed: int,
    channels: int,
    vae_config: Mapping[str, Any],
    *,
    transformers: int = 1,
    **pipeline_config: Any,
) -> None:
    tokenizer = text.t5_tokenizer(WORDS, TEXT_LENGTH)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        models = {}
        for name in ("transformer", "transformer_2")[:transformers]:
            models[name] = WanTransformer3DModel(
                num_attention_heads=2,
                attention_head_dim=HIDDEN // 2,
                in_channels=channels,
                out_channels=channels,
                text_dim=WIDTH,
                freq_dim=32,
                ffn_dim=2 * HIDDEN,
                num_layers=2,
            ).eval()
            torch.nn.init.normal_(models[name].proj_out.weight, std=0.1)
        vae = AutoencoderKLWan(
            base_dim=8,
            z_dim=channels,
            num_res_blocks=1,
            latents_mean=[0.0] * channels,
            latents_std=[1.0] * channels,
            **vae_config,
        )
    with torch.no_grad():
        vae.decoder.conv_out.weight *= CONTRAST
    pipeline = WanPipeline(
        **models,
        scheduler=UniPCMultistepScheduler(use_flow_sigmas=True, prediction_type="flow_prediction", flow_shift=3.0),
        vae=vae.eval(),
        text_encoder=text.umt5_encoder(tokenizer, WIDTH, seed=seed + 1),
        tokenizer=tokenizer,
        **pipeline_config,
    )
    save(pipeline, path)
