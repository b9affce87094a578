"""Groups of samples: the rows of a batch that share a prompt."""

from collections.abc import Sequence

import torch
from torch import Tensor


def rows_of_groups(rewards: Tensor, groups: Sequence[str]) -> list[list[int]]:
    """Rows of each group that have a reward, in the order in which the groups appear.

    Args:
        rewards: [B]; NaN: the row has none.
        groups: the prompt that each row belongs to.

    Raises:
        ValueError: lengths differ, or a reward is infinite.
    """
    if len(rewards) != len(groups):
        raise ValueError(f"{len(rewards)} rewards for {len(groups)} rows")
    if bool(torch.isinf(rewards).any()):
        raise ValueError("a reward is infinite")
    members: dict[str, list[int]] = {group: [] for group in groups}
    for row in rows_with_reward(rewards).tolist():
        members[groups[row]].append(row)
    return list(members.values())


def rows_with_reward(rewards: Tensor) -> Tensor:
    """Rows of `rewards` [B] that are not NaN, int64."""
    return (~torch.isnan(rewards)).nonzero().flatten()
