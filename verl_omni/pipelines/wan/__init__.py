"""Wan, text to video.

Wan 2.2 A14B has a second transformer for noise levels below `boundary_ratio` (with 15 steps the last 8). Both are
trained, each on the steps that it sampled, so weights take twice the memory. A window of high noise levels trains the
first only. Load the second adapter with
`pipe.load_lora_weights(FOLDER + "/transformer_2", load_into_transformer_2=True)`. Examples:
`examples/wan22-5b-dance-grpo.yaml`, `examples/wan22-a14b-dance-grpo.yaml`.
"""

from verl_omni.pipelines.description import Example, FamilyDescription, family_in

FAMILY = FamilyDescription(
    {"WanPipeline": family_in(__name__, "WanRolloutPipeline", experts=True, videos=True)},
    "Wan 2.1, Wan 2.2 TI2V 5B and A14B",
    {"wan": "make_tiny_wan", "wan_5b": "make_tiny_wan_5b", "wan_a14b": "make_tiny_wan_a14b"},
    Example("wan22-5b", "wan22-5b-dance-grpo", lent=True),
    generates="videos from text",
)
