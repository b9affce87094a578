"""FLUX.2-klein-base: sizes of the released models (bfl.ai/blog/flux2-klein) for `drl fit`, and of one to measure."""

from typing import Any

from verl_omni.pipelines.description import Component, ReleasedModel
from verl_omni.pipelines.released_components import IMAGE_VAE

_VAE = {**{name: value for name, value in IMAGE_VAE.items() if not name.endswith("quant_conv")}, "latent_channels": 32}


def _released(billions: float, layers: int, single_layers: int, heads: int, encoder: dict[str, Any]) -> ReleasedModel:
    transformer = {
        "in_channels": 128,
        "num_layers": layers,
        "num_single_layers": single_layers,
        "attention_head_dim": 128,
        "num_attention_heads": heads,
        "joint_attention_dim": 3 * encoder["hidden_size"],
        "guidance_embeds": False,
        "axes_dims_rope": [32, 32, 32, 32],
    }
    shared = {
        "model_type": "qwen3",
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
    }
    return ReleasedModel(
        "Flux2KleinPipeline",
        {
            "transformer": ("Flux2Transformer2DModel", transformer),
            "text_encoder": ("Qwen3ForCausalLM", {**shared, **encoder}),
            "vae": ("AutoencoderKLFlux2", _VAE),
        },
        131072,
        billions,
        {"is_distilled": False},
    )


RELEASED = {
    "black-forest-labs/FLUX.2-klein-base-4B": _released(
        3.9, 5, 20, 24, {"hidden_size": 2560, "intermediate_size": 9728, "tie_word_embeddings": True}
    ),
    "black-forest-labs/FLUX.2-klein-base-9B": _released(
        9.1, 8, 24, 32, {"hidden_size": 4096, "intermediate_size": 12288, "tie_word_embeddings": False}
    ),
}
MEASURED: Component = (
    "Flux2Transformer2DModel",
    {
        "in_channels": 16,
        "num_layers": 3,
        "num_single_layers": 4,
        "attention_head_dim": 32,
        "num_attention_heads": 6,
        "joint_attention_dim": 48,
        "guidance_embeds": False,
        "axes_dims_rope": [8, 8, 8, 8],
    },
)
WIDE = {"attention_head_dim": 128, "num_attention_heads": 24, "axes_dims_rope": [32, 32, 32, 32]}
