"""Placement of the SDE window of a sample (MixGRPO, arXiv:2507.21802)."""

import torch

from verl_omni.algos.sde_settings import SdeSettings


def place(settings: SdeSettings, *, steps: int, seed: int, training_step: int) -> tuple[int, ...]:
    """Steps of the window, ascending.

    The seed places a `random` window, of which each place, or each set of steps that need not be contiguous, is equally
    likely. A `progressive` one moves with the training step, and starts over at the end.

    Args:
        steps: number of denoising steps.

    Raises:
        ValueError: the window does not fit.
    """
    low, high, size = settings.bounds(steps)
    places = high - low - size + 1
    if settings.strategy == "progressive":
        start = low + (training_step // settings.iters_per_group) % places
        return tuple(range(start, start + size))
    generator = torch.Generator().manual_seed(seed % 2**63)
    if settings.contiguous:
        start = low + int(torch.randint(places, (), generator=generator))
        return tuple(range(start, start + size))
    chosen = torch.randperm(high - low, generator=generator)[:size]
    return tuple(sorted(low + offset for offset in chosen.tolist()))
