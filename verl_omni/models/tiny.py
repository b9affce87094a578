"""Tiny random models for tests, one of each family and a language model: made offline, deterministic by seed.

Each has the scheduler of its released model.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from diffusers import (
    AutoencoderKL,
    AutoencoderKLQwenImage,
    AutoencoderKLWan,
    FlowMatchEulerDiscreteScheduler,
    QwenImageEditPipeline,
    QwenImageEditPlusPipeline,
    QwenImagePipeline,
    QwenImageTransformer2DModel,
    SD3Transformer2DModel,
    StableDiffusion3Pipeline,
    UniPCMultistepScheduler,
    WanPipeline,
    WanTransformer3DModel,
)
from transformers import Qwen2Config, Qwen2ForCausalLM

from verl_omni.models import text
from verl_omni.models.saving import save
from verl_omni.models.vision_language import make_tiny_qwen3_vl

WORDS = tuple(
    "a above and below black blue bright cat circle dark dog green house left of on orange photo purple red "  # noqa: SIM905
    "right sky small square the tree triangle two white with yellow".split()
)
TEXT_LENGTH = 16
WIDTH = 32
HIDDEN = 32
LATENT_CHANNELS = 16
IMAGE_SIDE = 64  # side of input images in pixels; larger ones are reduced
# Factor of a VAE's output weights: a random decoder gives nearly grey images, which rewards cannot tell apart, and a
# random encoder of input images nearly equal latents, whose mistakes would not show.
CONTRAST = 8.0


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


def make_tiny_qwen_image(path: Path, seed: int = 0) -> None:
    """Write the model: a transformer of 89 thousand parameters, a VAE with a factor of 8, a text encoder."""
    _make_qwen_image(path, seed, QwenImagePipeline, text.qwen_tokenizer(WORDS))


def make_tiny_qwen_image_edit(path: Path, seed: int = 0) -> None:
    """Write the model like Qwen-Image-Edit: as the tiny Qwen-Image, with a processor of input images."""
    _make_qwen_image_edit(path, seed, QwenImageEditPipeline)


def make_tiny_qwen_image_edit_plus(path: Path, seed: int = 0) -> None:
    """Write the model like Qwen-Image-Edit-2511: noise levels of input images are 0 (`zero_cond_t`)."""
    _make_qwen_image_edit(path, seed, QwenImageEditPlusPipeline, zero_cond_t=True)


def _make_qwen_image_edit(path: Path, seed: int, pipeline: Any, **transformer: Any) -> None:
    tokenizer = text.qwen_tokenizer(WORDS, text.QWEN_VISION)
    processor = text.qwen_processor(tokenizer, max_pixels=IMAGE_SIDE**2)
    _make_qwen_image(path, seed, partial(pipeline, processor=processor), tokenizer, **transformer)


def _make_qwen_image(path: Path, seed: int, pipeline_class: Any, tokenizer: Any, **transformer_config: Any) -> None:
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
        made = {}
        for name in ("transformer", "transformer_2")[:transformers]:
            made[name] = WanTransformer3DModel(
                num_attention_heads=2,
                attention_head_dim=HIDDEN // 2,
                in_channels=channels,
                out_channels=channels,
                text_dim=WIDTH,
                freq_dim=32,
                ffn_dim=2 * HIDDEN,
                num_layers=2,
            ).eval()
            torch.nn.init.normal_(made[name].proj_out.weight, std=0.1)
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
        **made,
        scheduler=UniPCMultistepScheduler(use_flow_sigmas=True, prediction_type="flow_prediction", flow_shift=3.0),
        vae=vae.eval(),
        text_encoder=text.umt5_encoder(tokenizer, WIDTH, seed=seed + 1),
        tokenizer=tokenizer,
        **pipeline_config,
    )
    save(pipeline, path)


@torch.no_grad()
def make_tiny_qwen2(path: Path, seed: int = 0) -> None:
    """Write the model: two layers of 4 heads that share 2 key-value heads, 30 thousand parameters, and a tokenizer.

    Its weights are large, so the next token depends on all before it, and greedy choices are never close.
    """
    tokenizer = text.qwen_tokenizer(WORDS)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        initializer_range=0.3,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(config)
    generator = torch.Generator().manual_seed(seed + 1)
    model.get_input_embeddings().weight.normal_(0, 1, generator=generator)
    save(model.eval(), path)
    tokenizer.save_pretrained(path)


MAKERS = {
    "qwen3_vl": make_tiny_qwen3_vl,
    "qwen_image": make_tiny_qwen_image,
    "qwen_image_edit": make_tiny_qwen_image_edit,
    "qwen_image_edit_plus": make_tiny_qwen_image_edit_plus,
    "sd3": make_tiny_sd3,
    "wan": make_tiny_wan,
    "wan_5b": make_tiny_wan_5b,
    "wan_a14b": make_tiny_wan_a14b,
}
