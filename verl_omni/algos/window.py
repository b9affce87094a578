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
    contiguous: bool,
) -> tuple[int, ...]:
    """Steps of the window, ascending.

    The seed places a `random` window; a `progressive` one moves by one step every `iters_per_group` training steps and
    starts over at the end.

    Args:
        steps: number of denoising steps.
        size, bounds: as `window_bounds.resolve` takes them.
        contiguous: the steps follow each other; otherwise each set of `size` steps is equally likely.

    Raises:
        ValueError: the window does not fit, the strategy is unknown, or a progressive window is not contiguous.
    """
    low, high, size = window_bounds.resolve(steps, size, bounds)
    places = high - low - size + 1
    match strategy:
        case "random":
            generator = torch.Generator().manual_seed(seed % 2**63)
            if not contiguous:
                chosen = torch.randperm(high - low, generator=generator)[:size]
                return tuple(sorted(low + place for place in chosen.tolist()))
            start = low + int(torch.randint(places, (), generator=generator))
        case "progressive":
            if not contiguous:
                raise ValueError(window_bounds.SCATTERED_PROGRESSIVE)
            start = low + (global_step // iters_per_group) % places
        case _:
            raise ValueError(f"Unknown sample_strategy {strategy!r}; one of random, progressive")
    return tuple(range(start, start + size))
