"""FLUX.2-klein-base.

The tokenizer's chat template counts towards `max_sequence_length`. Noise levels depend on size and number of steps. A
distilled model (`is_distilled` in `model_index.json`) is not guided. Generates from text only.
"""

from verl_omni.pipelines.description import FamilyDescription, family_in

FAMILY = FamilyDescription(
    {"Flux2KleinPipeline": family_in(__name__, "Flux2KleinRolloutPipeline", checks_prompts=False)},
    "FLUX.2-klein-base 4B and 9B",
    {"flux2_klein": "make_tiny_flux2_klein"},
    distilled="klein(?!-base)",
    pipeline={"guidance": 4.0},
)
