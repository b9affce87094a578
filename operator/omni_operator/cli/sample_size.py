"""Sides of samples that a model can make, from the configuration files in its folder.

The trainer checks the same for every model (`verl_omni.pipelines.sample_shapes.size_check`); a contract test compares
the two.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verl_omni.pipelines.registry import FAMILIES


def find_problem(model: Path, pixels: int) -> str | None:
    """Why the model cannot generate samples with a side of `pixels`; None if it can, or the model is unknown.

    Args:
        model: folder in diffusers' layout.
    """
    try:
        index, transformer, vae = (_read(model / name) for name in FILES)
    except (OSError, ValueError):
        return None  # the trainer names the file
    if index.get("_class_name") not in FAMILIES:
        return None
    step = _pixels_of_a_latent(vae) * _latents_of_a_token(transformer, vae)
    if pixels % step:
        return f"must be a multiple of {step} for this model, not {pixels}; write {max(pixels // step, 1) * step}"
    positions = transformer.get("pos_embed_max_size")
    if positions and pixels > positions * step:
        return f"must be at most {positions * step}, not {pixels}: the model has no more positions"
    return None


FILES = ("model_index.json", "transformer/config.json", "vae/config.json")


def _read(file: Path) -> Mapping[str, Any]:
    values = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(values, dict):
        raise ValueError(f"{file} is not a mapping")
    return values


def _latents_of_a_token(transformer: Mapping[str, Any], vae: Mapping[str, Any]) -> int:
    """Latents on a side of a token: of the transformer's patches, or as many as the pipeline packs into channels."""
    patch = transformer.get("patch_size", 2)
    channels = vae.get("latent_channels") or vae.get("z_dim")
    packed = math.isqrt(transformer.get("in_channels", 0) // channels) if channels else 0
    return int(max(patch[-1] if isinstance(patch, list) else patch, packed))


def _pixels_of_a_latent(vae: Mapping[str, Any]) -> int:
    if "block_out_channels" in vae:
        return int(2 ** (len(vae["block_out_channels"]) - 1))
    return int(vae.get("scale_factor_spatial") or 2 ** len(vae.get("temperal_downsample", (False, True, True))))
