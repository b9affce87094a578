"""A tiny FLUX.1-dev with random weights: `python3 -m my_flux.tiny_model FOLDER`."""

import sys
from pathlib import Path

import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel
from transformers import CLIPTextModel

from verl_omni.models import text
from verl_omni.models.saving import save

WORDS = ("a", "black", "blue", "cat", "circle", "green", "photo", "red", "square", "the", "tree", "white")
TEXT_LENGTH, WIDTH, CHANNELS = 16, 32, 4


def make(path: Path) -> None:
    """Write the model in diffusers' layout."""
    torch.manual_seed(0)
    clip, t5 = text.clip_tokenizer(WORDS, TEXT_LENGTH), text.t5_tokenizer(WORDS, TEXT_LENGTH)
    transformer = FluxTransformer2DModel(
        in_channels=4 * CHANNELS,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=WIDTH,
        pooled_projection_dim=WIDTH,
        guidance_embeds=True,
        axes_dims_rope=(4, 6, 6),
    )
    torch.nn.init.normal_(transformer.proj_out.weight, std=0.1)  # not zero: otherwise nothing would be denoised
    vae = AutoencoderKL(
        latent_channels=CHANNELS,
        layers_per_block=1,
        norm_num_groups=4,
        block_out_channels=(16,) * 4,
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        scaling_factor=1.0,
        shift_factor=0.0,
    )
    with torch.no_grad():
        vae.decoder.conv_out.weight *= 8  # images of a random decoder are nearly gray
    pipeline = FluxPipeline(
        transformer=transformer.eval(),
        scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        vae=vae.eval(),
        text_encoder=CLIPTextModel(text.clip_encoder(clip, WIDTH, TEXT_LENGTH, seed=1).config).eval(),
        tokenizer=clip,
        text_encoder_2=text.t5_encoder(t5, WIDTH, seed=2),
        tokenizer_2=t5,
    )
    save(pipeline, path)
    index = path / "model_index.json"  # the package has a family `FluxPipeline`
    index.write_text(index.read_text().replace('"FluxPipeline"', '"MyFluxPipeline"'))


if __name__ == "__main__":
    make(Path(sys.argv[1]))
