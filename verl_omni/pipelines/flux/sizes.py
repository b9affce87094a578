"""FLUX.1-dev: sizes of the released model (github.com/black-forest-labs/flux) for `drl fit`, and of one to measure."""

from verl_omni.pipelines.description import Component, ReleasedModel
from verl_omni.pipelines.released_components import CLIP_L, IMAGE_VAE, T5_XXL

RELEASED = {
    "black-forest-labs/FLUX.1-dev": ReleasedModel(
        "FluxPipeline",
        {
            "transformer": (
                "FluxTransformer2DModel",
                {
                    "in_channels": 64,
                    "num_layers": 19,
                    "num_single_layers": 38,
                    "attention_head_dim": 128,
                    "num_attention_heads": 24,
                    "joint_attention_dim": 4096,
                    "pooled_projection_dim": 768,
                    "guidance_embeds": True,
                    "axes_dims_rope": [16, 56, 56],
                },
            ),
            "text_encoder": ("CLIPTextModel", CLIP_L),
            "text_encoder_2": ("T5EncoderModel", T5_XXL),
            "vae": ("AutoencoderKL", IMAGE_VAE),
        },
        77,
        11.9,
    )
}
MEASURED: Component = (
    "FluxTransformer2DModel",
    {
        "in_channels": 16,
        "num_layers": 3,
        "num_single_layers": 4,
        "attention_head_dim": 32,
        "num_attention_heads": 6,
        "joint_attention_dim": 32,
        "pooled_projection_dim": 32,
        "guidance_embeds": True,
        "axes_dims_rope": [8, 12, 12],
    },
)
WIDE = {"attention_head_dim": 128, "num_attention_heads": 24, "axes_dims_rope": [16, 56, 56]}
