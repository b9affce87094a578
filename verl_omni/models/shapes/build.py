"""The example model before training: a Stable Diffusion 3 pipeline of diffusers."""

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, SD3Transformer2DModel, StableDiffusion3Pipeline
from diffusers.models.embeddings import get_2d_sincos_pos_embed

from verl_omni.models import text
from verl_omni.models.shapes.scenes import all_scenes
from verl_omni.models.shapes.vae import linear_vae

TEXT_LENGTH = 12  # tokens of each encoder
CLIP_WIDTH = 32
LATENT_SIZE = 32
# Rows and columns of the position table; the engine's warm-up request of 512 pixels needs this many.
POSITIONS = 64


def pipeline(
    *, hidden: int = 64, layers: int = 4, heads: int = 4, patch: int = 4, seed: int = 0
) -> StableDiffusion3Pipeline:
    """A pipeline with a random transformer (0.6 M parameters), fixed encoders and a closed-form VAE."""
    words = sorted({word for scene in all_scenes() for word in scene.text.split()})
    clip = text.clip_tokenizer(words, TEXT_LENGTH)
    t5 = text.t5_tokenizer(words, TEXT_LENGTH)
    for word in words:
        if len(clip(word).input_ids) != 3 or len(t5(word).input_ids) != 2:
            raise ValueError(f"{word!r} is not one token")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        transformer = SD3Transformer2DModel(  # its position table is replaced below
            sample_size=LATENT_SIZE,
            patch_size=patch,
            in_channels=3,
            out_channels=3,
            num_layers=layers,
            attention_head_dim=hidden // heads,
            num_attention_heads=heads,
            caption_projection_dim=hidden,
            joint_attention_dim=2 * CLIP_WIDTH,
            pooled_projection_dim=2 * CLIP_WIDTH,
            pos_embed_max_size=POSITIONS,
            qk_norm="rms_norm",
        )
    _use_own_positions(transformer, LATENT_SIZE // patch)
    return StableDiffusion3Pipeline(
        transformer=transformer,
        scheduler=FlowMatchEulerDiscreteScheduler(shift=1.0),
        vae=linear_vae(),
        text_encoder=text.clip_encoder(clip, CLIP_WIDTH, TEXT_LENGTH, seed=7),
        tokenizer=clip,
        text_encoder_2=text.clip_encoder(clip, CLIP_WIDTH, TEXT_LENGTH, seed=8),
        tokenizer_2=text.clip_tokenizer(words, TEXT_LENGTH),
        text_encoder_3=text.t5_encoder(t5, 2 * CLIP_WIDTH, seed=9),
        tokenizer_3=t5,
    )


@torch.no_grad()
def _use_own_positions(transformer: SD3Transformer2DModel, size: int) -> None:
    """Put the table of a size x size grid into the centre, where images of 64 pixels are cropped from.

    diffusers spreads the positions of the native grid over the whole table, so the positions of such images would
    hardly differ. The rest of the table is not trained and stays zero.
    """
    table = transformer.pos_embed.pos_embed
    width = table.shape[-1]
    native = get_2d_sincos_pos_embed(width, size, base_size=size, output_type="pt").view(size, size, width)
    grid = torch.zeros(POSITIONS, POSITIONS, width)
    start = (POSITIONS - size) // 2
    grid[start : start + size, start : start + size] = native
    table.copy_(grid.view(1, POSITIONS * POSITIONS, width))


@torch.no_grad()
def embed(pipe: StableDiffusion3Pipeline, prompts: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """Prompt embeddings [N, 24, 64] and pooled embeddings [N, 64]."""
    sequences = []
    pooled = []
    for start in range(0, len(prompts), 256):
        embeds, _, pooled_embeds, _ = pipe.encode_prompt(
            prompts[start : start + 256], None, None, do_classifier_free_guidance=False, max_sequence_length=TEXT_LENGTH
        )
        sequences.append(embeds)
        pooled.append(pooled_embeds)
    return torch.cat(sequences), torch.cat(pooled)
