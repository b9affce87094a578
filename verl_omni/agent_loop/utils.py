"""PURE: seeds of single samples, derived from one base."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from verl_omni.utils.seeds import derived_seed


def maybe_per_rollout_seeds(
    meta_info: Mapping[str, Any], batch_size: int, global_indices: Sequence[int] | None = None
) -> list[int] | None:
    """A seed for each row, or None when `meta_info["rollout_seed"]` is not given.

    (base * 1_000_003 + index) mod (2^63 - 1), where the index counts over the whole batch, so that seeds do not
    depend on how the batch is cut for the workers.

    Raises:
        ValueError: there is not one index a row.
    """
    base = meta_info.get("rollout_seed")
    if base is None:
        return None
    indices = range(batch_size) if global_indices is None else global_indices
    if len(indices) != batch_size:
        raise ValueError(f"Expected {batch_size} global rollout indices, got {len(indices)}")
    return [derived_seed(int(base), int(index)) for index in indices]
