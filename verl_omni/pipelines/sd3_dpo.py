"""Recipes name this module in `model.external_lib`. Diffusion-DPO of Stable Diffusion 3 is built in."""

from typing import Any

from verl_omni.reference_names import missing_name


def __getattr__(name: str) -> Any:
    raise missing_name(__name__, name)
