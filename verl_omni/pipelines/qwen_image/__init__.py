"""Qwen-Image."""

from verl_omni.pipelines.description import Example, FamilyDescription, family_in

FAMILY = FamilyDescription(
    {"QwenImagePipeline": family_in(__name__, "QwenImageRolloutPipeline", stepwise=True)},
    "Qwen-Image",
    {"qwen_image": "make_tiny_qwen_image"},
    Example("qwen-image", "qwen-image-ocr-grpo"),
)
