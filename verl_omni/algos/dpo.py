"""Direct preference optimisation of a flow-matching model on pairs that it drew itself.

Diffusion-DPO (arXiv:2311.12908, eq. 14) with the velocity in the place of the noise (arXiv:2501.13918, eq. 8).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from verl_omni.algos.groups import rows_of_groups


def pairs(rewards: Tensor, groups: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Rows of the best and of the worst sample of each group, int64 [G] each, in the order of the groups.

    Of equal rewards the first row is taken, so a group of equal ones gives the same row twice: no preference.

    Args:
        rewards: [B]. groups: the prompt that each row belongs to.

    Raises:
        ValueError: lengths differ, or a reward is not finite.
    """
    members = rows_of_groups(rewards, groups)
    values = rewards.tolist()
    best = [max(rows, key=lambda row: values[row]) for rows in members]
    worst = [min(rows, key=lambda row: values[row]) for rows in members]
    return torch.tensor(best), torch.tensor(worst)


def margin(better: Tensor, base_better: Tensor, worse: Tensor, base_worse: Tensor) -> Tensor:
    """How much more the model gained on the better sample than on the worse one, against the base, [P].

    Args:
        better, worse: error of the model's velocity on either sample of a pair, [P].
        base_better, base_worse: the same of the base.
    """
    return (base_better - better) - (base_worse - worse)


def loss(margin: Tensor, *, beta: float) -> Tensor:
    """-log sigmoid(beta / 2 margin) of each pair, [P]; log 2 where the model is the base.

    `beta` holds what the papers write as beta T w(t): a large one keeps the model near the base.
    """
    return -torch.nn.functional.logsigmoid(0.5 * beta * margin)
