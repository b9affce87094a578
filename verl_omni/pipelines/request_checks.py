"""PURE: checks of an engine request before it joins a batch: an invalid request would fail the whole batch."""

from collections.abc import Mapping
from typing import Any

import torch

from verl_omni.pipelines.engine_requests import sde_window
from verl_omni.pipelines.sample_shapes import SizeCheck


def check_request(params: Any, size: SizeCheck, *, steps: int) -> None:
    """Check the size of a request's samples and its SDE window.

    Args:
        params: the engine's sampling parameters; height and width default to the model's. For an invalid size,
            upstream's pipelines would generate a smaller sample.
        size: size check of the model (`sample_shapes.size_check`). steps: number of denoising steps.

    Raises:
        ValueError: no sample has this size, the window does not fit, or an argument of it is of a wrong type.
    """
    if problem := size(params.height, params.width):
        raise ValueError(problem)
    _check_extra(params.extra_args or {}, steps)


def _check_extra(extra: Mapping[str, Any], steps: int) -> None:
    """Check the arguments of the SDE window; over HTTP, a client can send anything as `extra_params`."""
    try:
        sde_window(extra, steps, seed=0)
        if extra.get("sde_noise_seed") is not None:
            torch.Generator().manual_seed(int(extra["sde_noise_seed"]))
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"noise_level, sde_* or another extra argument of the SDE window: {error}") from error
