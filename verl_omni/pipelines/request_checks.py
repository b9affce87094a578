"""PURE: checks of an engine request before it joins a batch: an invalid request would fail the whole batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from verl_omni.pipelines.engine_requests import sde_window


def check_size(params: Any, multiple: int, most: int | None = None) -> None:
    """Check height and width in pixels.

    Args:
        params: the engine's sampling parameters; sides that are not set are those of the model.
        multiple: pixels of one token of the transformer. most: the largest side, if there is one.

    Raises:
        ValueError: no sample has this size.
    """
    for side, pixels in (("height", params.height), ("width", params.width)):
        if pixels is not None and (pixels <= 0 or pixels % multiple):
            raise ValueError(f"{side} must be a multiple of {multiple}, not {pixels}")
        if pixels is not None and most is not None and pixels > most:
            raise ValueError(f"{side} must be at most {most}, not {pixels}: the model has no more positions")


def check_extra(extra: Mapping[str, Any], steps: int) -> None:
    """Check the extra arguments that place the SDE window; over HTTP, a client can send anything as `extra_params`.

    Args:
        steps: number of denoising steps.

    Raises:
        ValueError: the window does not fit, or a value is of a wrong type or out of range.
    """
    try:
        sde_window(extra, steps, seed=0)
        if extra.get("sde_noise_seed") is not None:
            torch.Generator().manual_seed(int(extra["sde_noise_seed"]))
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"noise_level, sde_* or another extra argument of the SDE window: {error}") from error
