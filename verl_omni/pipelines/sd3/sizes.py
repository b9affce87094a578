"""Stable Diffusion 3: sizes of the released models (arXiv:2403.03206) for `drl fit`, and of one to measure."""

from verl_omni.pipelines.description import Component, ReleasedModel
from verl_omni.pipelines.released_components import CLIP_G, CLIP_L, IMAGE_VAE, T5_XXL


def _sd3(layers: int, heads: int, positions: int, dual_layers: int) -> dict[str, Component]:
    return {
        "transformer": (
            "SD3Transformer2DModel",
            {
                "sample_size": 128,
                "patch_size": 2,
                "in_channels": 16,
                "out_channels": 16,
                "num_layers": layers,
                "attention_head_dim": 64,
                "num_attention_heads": heads,
                "joint_attention_dim": 4096,
                "caption_projection_dim": 64 * heads,
                "pooled_projection_dim": 2048,
                "pos_embed_max_size": positions,
                "dual_attention_layers": list(range(dual_layers)),
                "qk_norm": "rms_norm",
            },
        ),
        "text_encoder": ("CLIPTextModelWithProjection", CLIP_L),
        "text_encoder_2": ("CLIPTextModelWithProjection", CLIP_G),
        "text_encoder_3": ("T5EncoderModel", T5_XXL),
        "vae": ("AutoencoderKL", IMAGE_VAE),
    }


def _released(billions: float, components: dict[str, Component]) -> ReleasedModel:
    return ReleasedModel("StableDiffusion3Pipeline", components, 77, billions)


RELEASED = {
    # With 0.3 billion positions, which are no parameters, medium has 2.5 billion.
    "stabilityai/stable-diffusion-3.5-medium": _released(2.2, _sd3(24, 24, 384, dual_layers=13)),
    "stabilityai/stable-diffusion-3.5-large": _released(8.1, _sd3(38, 38, 192, dual_layers=0)),
}
MEASURED: Component = (
    "SD3Transformer2DModel",
    {
        "sample_size": 32,
        "patch_size": 2,
        "in_channels": 16,
        "out_channels": 16,
        "num_layers": 6,
        "attention_head_dim": 32,
        "num_attention_heads": 6,
        "joint_attention_dim": 64,
        "caption_projection_dim": 192,
        "pooled_projection_dim": 64,
        "pos_embed_max_size": 32,
        "qk_norm": "rms_norm",
        "dual_attention_layers": [0, 1],
    },
)
WIDE = {"attention_head_dim": 64, "num_attention_heads": 24, "caption_projection_dim": 1536, "num_layers": 12}
