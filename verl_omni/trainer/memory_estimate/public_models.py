"""Configurations of public models, by Hugging Face model id, so that their memory can be estimated offline.

Source: the `model_index.json` of each repository and the `config.json` of its components, as far as they determine
shapes; other keys have the defaults of diffusers and transformers. The configurations agree with the sizes that the
authors publish (tests/ml/trainer/memory_estimate/test_public_models.py): SD3.5 medium and large (arXiv:2403.03206),
Qwen-Image (arXiv:2508.02324), Wan 2.1 (arXiv:2503.20314), Wan 2.2 (github.com/Wan-Video/Wan2.2).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verl_omni.utils.model_folder import SECOND_TRANSFORMER

Component = tuple[str, Mapping[str, Any]]  # class name, configuration

_CLIP_L = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "projection_dim": 768,
    "max_position_embeddings": 77,
    "vocab_size": 49408,
    "hidden_act": "quick_gelu",
    "model_type": "clip_text_model",
}
_CLIP_G = {
    **_CLIP_L,
    "hidden_size": 1280,
    "intermediate_size": 5120,
    "num_hidden_layers": 32,
    "num_attention_heads": 20,
    "projection_dim": 1280,
    "hidden_act": "gelu",
}
_T5_XXL = {
    "d_model": 4096,
    "d_ff": 10240,
    "d_kv": 64,
    "num_heads": 64,
    "num_layers": 24,
    "vocab_size": 32128,
    "feed_forward_proj": "gated-gelu",
    "model_type": "t5",
}
_UMT5_XXL = {**_T5_XXL, "vocab_size": 256384, "model_type": "umt5"}
_QWEN_2_5_VL_7B = {
    "model_type": "qwen2_5_vl",
    "text_config": {
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "vocab_size": 152064,
        "tie_word_embeddings": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]},
    },
    "vision_config": {
        "depth": 32,
        "hidden_size": 1280,
        "intermediate_size": 3420,
        "num_heads": 16,
        "out_hidden_size": 3584,
    },
    "tie_word_embeddings": False,
}
_SD3_VAE = {
    "in_channels": 3,
    "out_channels": 3,
    "latent_channels": 16,
    "layers_per_block": 2,
    "norm_num_groups": 32,
    "block_out_channels": [128, 256, 512, 512],
    "down_block_types": ["DownEncoderBlock2D"] * 4,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
    "sample_size": 1024,
    "use_quant_conv": False,
    "use_post_quant_conv": False,
}
_VIDEO_VAE = {
    "base_dim": 96,
    "z_dim": 16,
    "dim_mult": [1, 2, 4, 4],
    "num_res_blocks": 2,
    "temperal_downsample": [False, True, True],
}
# VAE of Wan 2.2 TI2V 5B: compresses 4 x 16 x 16; a factor of 2 on each side comes from packing pixels.
_RESIDUAL_VIDEO_VAE = {
    **_VIDEO_VAE,
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
        "text_encoder": ("CLIPTextModelWithProjection", _CLIP_L),
        "text_encoder_2": ("CLIPTextModelWithProjection", _CLIP_G),
        "text_encoder_3": ("T5EncoderModel", _T5_XXL),
        "vae": ("AutoencoderKL", _SD3_VAE),
    }


def _wan(
    layers: int, heads: int, feed_forward: int, channels: int = 16, vae: Mapping[str, Any] = _VIDEO_VAE
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
        "text_encoder": ("UMT5EncoderModel", _UMT5_XXL),
        "vae": ("AutoencoderKLWan", vae),
    }


def _two_transformers(components: dict[str, Component]) -> dict[str, Component]:
    return {**components, SECOND_TRANSFORMER: components["transformer"]}


_QWEN_IMAGE: dict[str, Component] = {
    "transformer": (
        "QwenImageTransformer2DModel",
        {
            "num_layers": 60,
            "num_attention_heads": 24,
            "attention_head_dim": 128,
            "in_channels": 64,
            "out_channels": 16,
            "joint_attention_dim": 3584,
            "patch_size": 2,
            "axes_dims_rope": [16, 56, 56],
        },
    ),
    "text_encoder": ("Qwen2_5_VLForConditionalGeneration", _QWEN_2_5_VL_7B),
    "vae": ("AutoencoderKLQwenImage", _VIDEO_VAE),
}

_QWEN_IMAGE_EDIT_2511 = {
    **_QWEN_IMAGE,
    "transformer": (_QWEN_IMAGE["transformer"][0], {**_QWEN_IMAGE["transformer"][1], "zero_cond_t": True}),
}
EDIT_PLUS = "QwenImageEditPlusPipeline"
SD3 = "StableDiffusion3Pipeline"
QWEN_IMAGE = "QwenImagePipeline"
WAN = "WanPipeline"
# Model id -> pipeline class, components, `model_max_length` of the first tokenizer.
MODELS: dict[str, tuple[str, dict[str, Component], int]] = {
    "stabilityai/stable-diffusion-3.5-medium": (SD3, _sd3(24, 24, 384, dual_layers=13), 77),
    "stabilityai/stable-diffusion-3.5-large": (SD3, _sd3(38, 38, 192, dual_layers=0), 77),
    "Qwen/Qwen-Image": (QWEN_IMAGE, _QWEN_IMAGE, 131072),
    "Qwen/Qwen-Image-Edit-2511": (EDIT_PLUS, _QWEN_IMAGE_EDIT_2511, 131072),
    "Wan-AI/Wan2.1-T2V-1.3B-Diffusers": (WAN, _wan(30, 12, 8960), 512),
    "Wan-AI/Wan2.1-T2V-14B-Diffusers": (WAN, _wan(40, 40, 13824), 512),
    "Wan-AI/Wan2.2-TI2V-5B-Diffusers": (WAN, _wan(30, 24, 14336, 48, _RESIDUAL_VIDEO_VAE), 512),
    "Wan-AI/Wan2.2-T2V-A14B-Diffusers": (WAN, _two_transformers(_wan(40, 40, 13824)), 512),
}


def write(model_id: str, folder: Path) -> None:
    """Write the configuration files of a public model to a folder, in diffusers' layout, without weights.

    Raises:
        KeyError: the model is not one of `MODELS`.
    """
    pipeline, components, tokenizer_length = MODELS[model_id]
    index: dict[str, Any] = {"_class_name": pipeline}
    if SECOND_TRANSFORMER in components:
        index["boundary_ratio"] = 0.875
    if components["vae"][1].get("is_residual"):
        index["expand_timesteps"] = True
    for name, (class_name, config) in components.items():
        text = name.startswith("text_encoder")
        index[name] = ["transformers" if text else "diffusers", class_name]
        named = {"architectures": [class_name]} if text else {"_class_name": class_name}
        _write(folder / name / "config.json", {**named, **config})
    _write(folder / "tokenizer" / "tokenizer_config.json", {"model_max_length": tokenizer_length})
    _write(folder / "model_index.json", index)


def _write(path: Path, content: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
