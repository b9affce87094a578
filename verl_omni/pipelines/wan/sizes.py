"""Wan: sizes of the released models for `drl fit`, and of one to measure.

Source: arXiv:2503.20314 (2.1), github.com/Wan-Video/Wan2.2.
"""

from collections.abc import Mapping
from typing import Any

from verl_omni.pipelines.description import Component, ReleasedModel
from verl_omni.pipelines.released_components import UMT5_XXL, VIDEO_VAE
from verl_omni.utils.model_folder import SECOND_TRANSFORMER

# VAE of Wan 2.2 TI2V 5B: compresses 4 x 16 x 16; a factor of 2 on each side comes from packing pixels.
_RESIDUAL_VIDEO_VAE = {
    **VIDEO_VAE,
    "base_dim": 160,
    "decoder_base_dim": 256,
    "z_dim": 48,
    "is_residual": True,
    "patch_size": 2,
    "in_channels": 12,
    "out_channels": 12,
    "scale_factor_temporal": 4,
    "scale_factor_spatial": 16,
    "latents_mean": [0.0] * 48,
    "latents_std": [1.0] * 48,
}


def _wan(
    layers: int, heads: int, feed_forward: int, channels: int = 16, vae: Mapping[str, Any] = VIDEO_VAE
) -> dict[str, Component]:
    return {
        "transformer": (
            "WanTransformer3DModel",
            {
                "num_layers": layers,
                "num_attention_heads": heads,
                "attention_head_dim": 128,
                "in_channels": channels,
                "out_channels": channels,
                "ffn_dim": feed_forward,
                "text_dim": 4096,
                "freq_dim": 256,
                "patch_size": [1, 2, 2],
                "cross_attn_norm": True,
                "qk_norm": "rms_norm_across_heads",
            },
        ),
        "text_encoder": ("UMT5EncoderModel", UMT5_XXL),
        "vae": ("AutoencoderKLWan", vae),
    }


def _two_transformers(components: dict[str, Component]) -> dict[str, Component]:
    return {**components, SECOND_TRANSFORMER: components["transformer"]}


def _released(billions: float, components: dict[str, Component], **index: Any) -> ReleasedModel:
    return ReleasedModel("WanPipeline", components, 512, billions, index)


RELEASED = {
    "Wan-AI/Wan2.1-T2V-1.3B-Diffusers": _released(1.4, _wan(30, 12, 8960)),
    "Wan-AI/Wan2.1-T2V-14B-Diffusers": _released(14.3, _wan(40, 40, 13824)),
    "Wan-AI/Wan2.2-TI2V-5B-Diffusers": _released(
        5.0, _wan(30, 24, 14336, 48, _RESIDUAL_VIDEO_VAE), expand_timesteps=True
    ),
    # each of two
    "Wan-AI/Wan2.2-T2V-A14B-Diffusers": _released(14.3, _two_transformers(_wan(40, 40, 13824)), boundary_ratio=0.875),
}
MEASURED: Component = (
    "WanTransformer3DModel",
    {
        "num_attention_heads": 6,
        "attention_head_dim": 32,
        "in_channels": 4,
        "out_channels": 4,
        "text_dim": 32,
        "freq_dim": 64,
        "ffn_dim": 512,
        "num_layers": 6,
    },
)
WIDE = {"attention_head_dim": 128, "num_attention_heads": 12, "ffn_dim": 8960, "num_layers": 12}
