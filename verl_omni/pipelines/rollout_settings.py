"""PURE: the extra arguments of a request -> the window of its SDE steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from verl_omni.algos import window
from verl_omni.pipelines.recording import Window


def window_of(extra: Mapping[str, Any], steps: int, seed: int) -> Window | None:
    """The window of one request, or None when it follows the ODE and nothing is recorded.

    Args:
        extra: the fields of `DiffusionRolloutAlgoConfig`, and `logprobs` and `global_steps`.
        steps: denoising steps.
        seed: of the request; a random window starts where it says.
    """
    noise_level = float(extra.get("noise_level") or 0.0)
    if noise_level <= 0 or not extra.get("logprobs"):
        return None
    start, size = window.place(
        steps=steps,
        size=extra.get("sde_window_size"),
        bounds=extra.get("sde_window_range"),
        strategy=extra.get("sample_strategy") or "random",
        seed=seed + int(extra.get("sde_window_seed") or 0),
        global_step=int(extra.get("global_steps") or 0),
        iters_per_group=int(extra.get("iters_per_group") or 1),
    )
    return Window(start=start, size=size, noise_level=noise_level, kind=str(extra.get("sde_type") or "sde"))
