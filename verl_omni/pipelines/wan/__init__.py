"""Wan, text to video."""

from __future__ import annotations

from verl_omni.pipelines.description import Example, FamilyDescription, family_in

FAMILY = FamilyDescription(
    {"WanPipeline": family_in(__name__, "WanRolloutPipeline", experts=True, videos=True)},
    "Wan 2.1, Wan 2.2 TI2V 5B and A14B",
    {"wan": "make_tiny_wan", "wan_5b": "make_tiny_wan_5b", "wan_a14b": "make_tiny_wan_a14b"},
    Example("wan22-5b", "wan22-5b-dance-grpo"),
    generates="videos from text",
)
