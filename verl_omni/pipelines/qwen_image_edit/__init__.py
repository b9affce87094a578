"""Qwen-Image-Edit and Qwen-Image-Edit-Plus: an image from a prompt and an input image."""

from verl_omni.pipelines.description import Example, FamilyDescription, family_in

FAMILY = FamilyDescription(
    {
        f"{name}Pipeline": family_in(__name__, f"{name}RolloutPipeline", training=f"{name}Training", images=True)
        for name in ("QwenImageEdit", "QwenImageEditPlus")
    },
    "Qwen-Image-Edit; Plus: 2509 and 2511",
    {"qwen_image_edit": "make_tiny_qwen_image_edit", "qwen_image_edit_plus": "make_tiny_qwen_image_edit_plus"},
    Example("qwen-image-edit", "qwen-image-edit-grpo"),
    generates="images from an image and a prompt",
)
