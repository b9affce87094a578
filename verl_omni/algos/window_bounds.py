"""PURE, without torch: size of the SDE window, and the steps that it lies in."""

from __future__ import annotations

from collections.abc import Sequence

DEFAULT_HIGH = 5  # steps that a window with a size and without a range may lie in
SCATTERED_PROGRESSIVE = "a progressive window is contiguous: write sde_contiguous=true or sample_strategy=random"


def resolve(steps: int, size: int | None, bounds: Sequence[int] | None) -> tuple[int, int, int]:
    """Steps [low, high) that the window lies in, and its size.

    Without a size it has every step but the last, because noise added in the last step is never denoised.

    Args:
        steps: number of denoising steps.
        size: length of the window; None: all of `bounds`.
        bounds: steps [low, high); None: all but the last, and with a size the first `DEFAULT_HIGH` of them, as in
            verl-omni.

    Raises:
        ValueError: the window does not fit.
    """
    most = steps - 1 if size is None else min(DEFAULT_HIGH, steps - 1)
    low, high = (int(bounds[0]), int(bounds[1])) if bounds is not None else (0, most)
    if size is None:
        size = high - low if bounds is not None else steps - 1
    if not (0 <= low < high <= steps and 0 < size <= high - low):
        raise ValueError(f"an SDE window of {size} steps does not fit into [{low}, {high}) of {steps} steps")
    return low, high, size
