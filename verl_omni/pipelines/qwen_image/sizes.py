"""Qwen-Image: sizes of the released model (arXiv:2508.02324) for `drl fit`, and of one to measure."""

from verl_omni.pipelines.description import Component, ReleasedModel
from verl_omni.pipelines.released_components import QWEN_2_5_VL_7B, VIDEO_VAE

COMPONENTS: dict[str, Component] = {
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
    "text_encoder": ("Qwen2_5_VLForConditionalGeneration", QWEN_2_5_VL_7B),
    "vae": ("AutoencoderKLQwenImage", VIDEO_VAE),
}
TOKENIZER_LENGTH = 131072
RELEASED = {"Qwen/Qwen-Image": ReleasedModel("QwenImagePipeline", COMPONENTS, TOKENIZER_LENGTH, 20.4)}
MEASURED: Component = (
    "QwenImageTransformer2DModel",
    {
        "in_channels": 16,
        "out_channels": 4,
        "num_layers": 5,
        "attention_head_dim": 32,
        "num_attention_heads": 6,
        "joint_attention_dim": 32,
        "axes_dims_rope": [8, 12, 12],
    },
)
WIDE = {"attention_head_dim": 128, "num_attention_heads": 24, "axes_dims_rope": [16, 56, 56]}
