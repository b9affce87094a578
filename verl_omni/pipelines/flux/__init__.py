"""FLUX.1-dev.

The guidance scale of FLUX.1-dev is an input of the model, so a step is one forward pass, and negative prompts have no
effect. FLUX.1-schnell, which has no such input, is refused.
"""

from verl_omni.pipelines.description import FamilyDescription, family_in

FAMILY = FamilyDescription(
    {"FluxPipeline": family_in(__name__, "FluxRolloutPipeline", checks_prompts=False, divides_encoders=True)},
    "FLUX.1-dev",
    {"flux": "make_tiny_flux"},
    guided=False,
    distilled="schnell",
    pipeline={"guidance": 3.5},
)
