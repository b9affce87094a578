"""PURE: the extra arguments of a request -> where it draws noise, and what is recorded of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from verl_omni.algos import window
from verl_omni.pipelines.recording import Window


@dataclass(frozen=True, slots=True)
class Wanted:
    """What goes back beside the picture; how the picture is drawn does not depend on it.

    Attributes:
        steps: the window's steps and their log-probabilities, for algorithms that compare likelihoods.
        clean_latents: what the decoder is given, for algorithms that add noise of their own to it.
        version: of the weights that drew it.
    """

    steps: bool = False
    clean_latents: bool = False
    version: bool = False


def wanted_of(extra: Mapping[str, Any]) -> Wanted:
    """What the extra arguments of one request ask for: `logprobs`, `clean_latents`, `weights_version`."""
    return Wanted(
        steps=bool(extra.get("logprobs")),
        clean_latents=bool(extra.get("clean_latents")),
        version=bool(extra.get("weights_version")),
    )


def window_of(extra: Mapping[str, Any], steps: int, seed: int) -> Window | None:
    """The window of one request, or None when it follows the ODE from end to end.

    Args:
        extra: the fields of `DiffusionRolloutAlgoConfig`, and `global_steps`, the version of the weights, which is
            the number of training steps that are done: a progressive window is where that number says.
        steps: denoising steps.
        seed: what the request's noise is drawn from; a random window starts where it says.
    """
    noise_level = float(extra.get("noise_level") or 0.0)
    if noise_level <= 0:
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
