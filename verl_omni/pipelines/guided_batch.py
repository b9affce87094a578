"""PURE: classifier-free guidance as one batch: rows with their prompt, then the same rows with the negative prompt."""

from collections.abc import Mapping

import torch
from torch import Tensor


def with_negative(batch: Mapping[str, Tensor], name: str) -> Tensor:
    """Tensor `name` of the batch [B, ...], followed by the tensor of the negative prompts: [2 B, ...]."""
    return torch.cat([batch[name], batch[f"negative_{name}"]])


def with_padded_negative(batch: Mapping[str, Tensor], name: str) -> Tensor:
    """`with_negative` for tensors [B, tokens, ...] of any two lengths: the shorter ends in zeros.

    For a mask and the embeddings that it masks: prompts and negative prompts are padded to their own longest.
    """
    positive = batch[name]
    negative = batch[f"negative_{name}"]
    longest = max(positive.shape[1], negative.shape[1])
    padded = [rows.new_zeros(len(rows), longest, *rows.shape[2:]) for rows in (positive, negative)]
    for target, rows in zip(padded, (positive, negative), strict=True):
        target[:, : rows.shape[1]] = rows
    return torch.cat(padded)


def twice(rows: Tensor) -> Tensor:
    """The rows [B, ...] once for each of the two prompts: [2 B, ...]."""
    return torch.cat([rows, rows])


def guide(found: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Guided prediction, negative + scale (positive - negative), and the unguided one, both [B, ...].

    Args:
        found: predictions [2 B, ...], those for the prompts first.
    """
    positive, negative = found.chunk(2)
    return negative + scale * (positive - negative), positive
