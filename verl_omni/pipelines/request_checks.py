"""PURE: checks of an engine request before it joins a batch: an invalid request would fail the whole batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from verl_omni.pipelines.engine_requests import sde_window


def check_request(params: Any, *, multiple: int, steps: int, most: int | None = None) -> None:
    """Check the size of a request's samples and its SDE window.

    Args:
        params: the engine's sampling parameters; sides that are not set are those of the model.
        multiple: pixels of one token of the transformer. steps: number of denoising steps.
        most: the largest side in pixels, if there is one.

    Raises:
        ValueError: no sample has this size, the window does not fit, or an argument of it is of a wrong type.
    """
    _check_size(params, multiple, most)
    _check_extra(params.extra_args or {}, steps)


def _check_size(params: Any, multiple: int, most: int | None = None) -> None:
    """Check height and width; upstream's pipelines would make a smaller sample."""
    for side, pixels in (("height", params.height), ("width", params.width)):
        if pixels is not None and (pixels <= 0 or pixels % multiple):
            raise ValueError(f"{side} must be a multiple of {multiple}, not {pixels}")
        if pixels is not None and most is not None and pixels > most:
            raise ValueError(f"{side} must be at most {most}, not {pixels}: the model has no more positions")


def _check_extra(extra: Mapping[str, Any], steps: int) -> None:
    """Check the arguments of the SDE window; over HTTP, a client can send anything as `extra_params`."""
    try:
        sde_window(extra, steps, seed=0)
        if extra.get("sde_noise_seed") is not None:
            torch.Generator().manual_seed(int(extra["sde_noise_seed"]))
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"noise_level, sde_* or another extra argument of the SDE window: {error}") from error
