"""Placement of the SDE window of a sample (MixGRPO, arXiv:2507.21802)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

DEFAULT_HIGH = 5  # steps that a window with a size and without a range may lie in


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

    Without a size it has every step but the last, because noise added in the last step is never denoised. The seed
    places a `random` window; a `progressive` one moves by one step every `iters_per_group` training steps and starts
    over at the end.

    Args:
        steps: number of denoising steps.
        size: length of the window; None: all of `bounds`.
        bounds: steps [low, high) that the window lies in; None: all but the last, and with a size the first
            `DEFAULT_HIGH` of them, as in verl-omni.

    Raises:
        ValueError: the window does not fit, or the strategy is unknown.
    """
    most = steps - 1 if size is None else min(DEFAULT_HIGH, steps - 1)
    low, high = (int(bounds[0]), int(bounds[1])) if bounds is not None else (0, most)
    if size is None:
        size = high - low if bounds is not None else steps - 1
    if not (0 <= low < high <= steps and 0 < size <= high - low):
        raise ValueError(f"an SDE window of {size} steps does not fit into [{low}, {high}) of {steps} steps")
    places = high - low - size + 1
    match strategy:
        case "random":
            generator = torch.Generator().manual_seed(seed % 2**63)
            return low + int(torch.randint(places, (), generator=generator)), size
        case "progressive":
            return low + (global_step // iters_per_group) % places, size
        case _:
            raise ValueError(f"Unknown sample_strategy {strategy!r}; one of random, progressive")
