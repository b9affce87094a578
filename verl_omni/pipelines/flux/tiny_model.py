"""A tiny random FLUX.1-dev: made offline, deterministic by seed."""

from pathlib import Path

import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel
from transformers import CLIPTextModel

from verl_omni.models import text
from verl_omni.models.saving import save
from verl_omni.models.tiny_parts import CONTRAST, HIDDEN, TEXT_LENGTH, WIDTH, WORDS

CHANNELS = 4


def make_tiny_flux(path: Path, seed: int = 0) -> None:
    """Write the model: a transformer of two layers, a VAE with a factor of 8, two text encoders."""
    clip = text.clip_tokenizer(WORDS, TEXT_LENGTH)
    t5 = text.t5_tokenizer(WORDS, TEXT_LENGTH)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        transformer = FluxTransformer2DModel(
            in_channels=4 * CHANNELS,
            num_layers=1,
            num_single_layers=1,
            attention_head_dim=HIDDEN // 2,
            num_attention_heads=2,
            joint_attention_dim=WIDTH,
            pooled_projection_dim=WIDTH,
            guidance_embeds=True,
            axes_dims_rope=(4, 6, 6),
        )
        # diffusers initializes it to zero, so nothing would be denoised
        torch.nn.init.normal_(transformer.proj_out.weight, std=0.1)
        vae = AutoencoderKL(
            latent_channels=CHANNELS,
            layers_per_block=1,
            norm_num_groups=4,
            block_out_channels=(16,) * 4,
            down_block_types=("DownEncoderBlock2D",) * 4,
            up_block_types=("UpDecoderBlock2D",) * 4,
            scaling_factor=1.0,
            shift_factor=0.0,
            use_quant_conv=False,
            use_post_quant_conv=False,
        )
        encoder = CLIPTextModel(text.clip_encoder(clip, WIDTH, TEXT_LENGTH, seed=seed + 1).config)
    with torch.no_grad():
        vae.decoder.conv_out.weight *= CONTRAST
    pipeline = FluxPipeline(
        transformer=transformer.eval(),
        scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True, shift=3.0),
        vae=vae.eval(),
        text_encoder=encoder.eval(),
        tokenizer=clip,
        text_encoder_2=text.t5_encoder(t5, WIDTH, seed=seed + 2),
        tokenizer_2=t5,
    )
    save(pipeline, path)
