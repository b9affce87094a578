"""A tiny random FLUX.2-klein: made offline, deterministic by seed."""

from pathlib import Path

import torch
from diffusers import (
    AutoencoderKLFlux2,
    FlowMatchEulerDiscreteScheduler,
    Flux2KleinPipeline,
    Flux2Transformer2DModel,
)
from transformers import Qwen3Config, Qwen3ForCausalLM

from verl_omni.models import text
from verl_omni.models.saving import save
from verl_omni.models.tiny_parts import CONTRAST, HIDDEN, WORDS

CHANNELS = 4
ENCODER_WIDTH = 16
READ_LAYERS = 3  # of the text encoder: the 9th, 18th and 27th
# As Qwen3's without thinking, with shorter words.
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>{% endif %}"
)


def make_tiny_flux2_klein(path: Path, seed: int = 0) -> None:
    """Write the model: a transformer of two layers, a VAE with a factor of 8, a text encoder of 28 layers."""
    tokenizer = text.qwen_tokenizer(WORDS)
    tokenizer.chat_template = CHAT_TEMPLATE
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        transformer = Flux2Transformer2DModel(
            in_channels=4 * CHANNELS,
            num_layers=1,
            num_single_layers=1,
            attention_head_dim=HIDDEN // 2,
            num_attention_heads=2,
            joint_attention_dim=READ_LAYERS * ENCODER_WIDTH,
            axes_dims_rope=(4, 4, 4, 4),
            guidance_embeds=False,
        )
        # diffusers initializes it to zero, so nothing would be denoised
        torch.nn.init.normal_(transformer.proj_out.weight, std=0.1)
        vae = AutoencoderKLFlux2(
            latent_channels=CHANNELS,
            layers_per_block=1,
            norm_num_groups=4,
            block_out_channels=(16,) * 4,
            down_block_types=("DownEncoderBlock2D",) * 4,
            up_block_types=("UpDecoderBlock2D",) * 4,
        )
        encoder = Qwen3ForCausalLM(
            Qwen3Config(
                vocab_size=len(tokenizer),
                hidden_size=ENCODER_WIDTH,
                intermediate_size=2 * ENCODER_WIDTH,
                num_hidden_layers=28,
                num_attention_heads=2,
                num_key_value_heads=1,
                head_dim=ENCODER_WIDTH // 2,
                initializer_range=0.3,
                bos_token_id=None,
                eos_token_id=tokenizer.eos_token_id,
                pad_token_id=tokenizer.pad_token_id,
            )
        )
        vae.bn.running_mean.normal_(std=0.1)
        vae.bn.running_var.uniform_(0.5, 1.5)
    with torch.no_grad():
        vae.decoder.conv_out.weight *= CONTRAST
    pipeline = Flux2KleinPipeline(
        transformer=transformer.eval(),
        scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True, shift=3.0),
        vae=vae.eval(),
        text_encoder=encoder.eval(),
        tokenizer=tokenizer,
        is_distilled=False,
    )
    save(pipeline, path)
