"""Direct preference optimization of a flow-matching model, on pairs of samples that it generated.

Diffusion-DPO (arXiv:2311.12908, eq. 14) with velocity instead of noise prediction (arXiv:2501.13918, eq. 8).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from verl_omni.algos.groups import rows_of_groups


def pairs(rewards: Tensor, groups: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Rows of the best and of the worst sample of each group, int64 [G] each, in the order of the groups.

    The first row wins ties, so a group of equal rewards gives the same row twice: no preference. So does a group with
    less than two rewards.

    Args:
        rewards: [B]; NaN: the row has none, and is no part of a pair unless its whole group has none.
        groups: the prompt that each row belongs to.

    Raises:
        ValueError: lengths differ, or a reward is infinite.
    """
    first = {group: row for row, group in reversed(list(enumerate(groups)))}
    scored = rows_of_groups(rewards, groups)
    members = [rows or [first[group]] for group, rows in zip(dict.fromkeys(groups), scored, strict=True)]
    values = rewards.tolist()
    best = [max(rows, key=lambda row: values[row]) for rows in members]
    worst = [min(rows, key=lambda row: values[row]) for rows in members]
    return torch.tensor(best), torch.tensor(worst)


def margin(better: Tensor, base_better: Tensor, worse: Tensor, base_worse: Tensor) -> Tensor:
    """Improvement over the base model on the better sample minus the improvement on the worse one, [P].

    Args:
        better, worse: velocity error of the model on the samples of a pair, [P].
        base_better, base_worse: velocity error of the base model.
    """
    return (base_better - better) - (base_worse - worse)


def loss(margin: Tensor, *, beta: float) -> Tensor:
    """-log sigmoid(beta / 2 * margin) of each pair, [P]; log 2 for the base model itself.

    `beta` stands for beta T w(t) of the papers: a larger value keeps the model closer to the base.
    """
    return -torch.nn.functional.logsigmoid(0.5 * beta * margin)
