"""A tiny random Stable Diffusion 3: made offline, deterministic by seed."""

from pathlib import Path

import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, SD3Transformer2DModel, StableDiffusion3Pipeline

from verl_omni.models import text
from verl_omni.models.saving import save
from verl_omni.models.tiny_parts import CONTRAST, HIDDEN, TEXT_LENGTH, WIDTH, WORDS

LATENT_CHANNELS = 16


def make_tiny_sd3(path: Path, seed: int = 0) -> None:
    """Write the model: a transformer of 82 thousand parameters, a VAE with a factor of 8, three text encoders."""
    clip = text.clip_tokenizer(WORDS, TEXT_LENGTH)
    t5 = text.t5_tokenizer(WORDS, TEXT_LENGTH)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        transformer = SD3Transformer2DModel(
            sample_size=16,
            patch_size=2,
            in_channels=LATENT_CHANNELS,
            out_channels=LATENT_CHANNELS,
            num_layers=2,
            attention_head_dim=HIDDEN // 2,
            num_attention_heads=2,
            caption_projection_dim=HIDDEN,
            joint_attention_dim=2 * WIDTH,
            pooled_projection_dim=2 * WIDTH,
            pos_embed_max_size=64,
            qk_norm="rms_norm",
        )
        torch.nn.init.normal_(
            transformer.proj_out.weight, std=0.1
        )  # diffusers initializes it to zero, so nothing would be denoised
        vae = AutoencoderKL(
            in_channels=3,
            out_channels=3,
            latent_channels=LATENT_CHANNELS,
            layers_per_block=1,
            norm_num_groups=4,
            down_block_types=("DownEncoderBlock2D",) * 4,
            up_block_types=("UpDecoderBlock2D",) * 4,
            block_out_channels=(16,) * 4,
            sample_size=64,
            use_quant_conv=False,
            use_post_quant_conv=False,
            scaling_factor=1.0,
            shift_factor=0.0,
        )
    with torch.no_grad():
        vae.decoder.conv_out.weight *= CONTRAST
    pipeline = StableDiffusion3Pipeline(
        transformer=transformer.eval(),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        vae=vae.eval(),
        text_encoder=text.clip_encoder(clip, WIDTH, TEXT_LENGTH, seed=seed + 1),
        tokenizer=clip,
        text_encoder_2=text.clip_encoder(clip, WIDTH, TEXT_LENGTH, seed=seed + 2),
        tokenizer_2=text.clip_tokenizer(WORDS, TEXT_LENGTH),
        text_encoder_3=text.t5_encoder(t5, 2 * WIDTH, seed=seed + 3),
        tokenizer_3=t5,
    )
    save(pipeline, path)
