"""Stable Diffusion 3."""

from verl_omni.pipelines.description import Example, FamilyDescription, family_in

FAMILY = FamilyDescription(
    {
        "StableDiffusion3Pipeline": family_in(
            __name__, "SD3RolloutPipeline", encoder="SD3Encoder", stepwise=True, checks_prompts=False
        )
    },
    "Stable Diffusion 3 and 3.5",
    {"sd3": "make_tiny_sd3"},
    Example("sd35", "sd35-ocr-1gpu", lent=True),
)
