"""Placement of the SDE window of a sample (MixGRPO, arXiv:2507.21802)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from verl_omni.algos import window_bounds


def place(
    *,
    steps: int,
    size: int | None,
    bounds: Sequence[int] | None,
    strategy: str,
    seed: int,
    global_step: int,
    iters_per_group: int,
) -> tuple[int, int]:
    """First step and number of steps of the window.

    The seed places a `random` window; a `progressive` one moves by one step every `iters_per_group` training steps and
    starts over at the end.

    Args:
        steps: number of denoising steps.
        size, bounds: as `window_bounds.resolve` takes them.

    Raises:
        ValueError: the window does not fit, or the strategy is unknown.
    """
    low, high, size = window_bounds.resolve(steps, size, bounds)
    places = high - low - size + 1
    match strategy:
        case "random":
            generator = torch.Generator().manual_seed(seed % 2**63)
            return low + int(torch.randint(places, (), generator=generator)), size
        case "progressive":
            return low + (global_step // iters_per_group) % places, size
        case _:
            raise ValueError(f"Unknown sample_strategy {strategy!r}; one of random, progressive")
