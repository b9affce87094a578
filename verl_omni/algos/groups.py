"""Groups of samples: the rows of a batch that share a prompt."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def rows_of_groups(rewards: Tensor, groups: Sequence[str]) -> list[list[int]]:
    """Rows of each group, in the order in which the groups appear.

    Args:
        rewards: [B].
        groups: the prompt that each row belongs to.

    Raises:
        ValueError: lengths differ, or a reward is not finite.
    """
    if len(rewards) != len(groups):
        raise ValueError(f"{len(rewards)} rewards for {len(groups)} rows")
    if not bool(torch.isfinite(rewards).all()):
        raise ValueError("a reward is not finite")
    members: dict[str, list[int]] = {}
    for row, group in enumerate(groups):
        members.setdefault(group, []).append(row)
    return list(members.values())
