"""PURE: prompts of a batch that are the same are encoded once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

Prompt = TypeVar("Prompt", str, list[int], str | list[int])


def encode_distinct(
    prompts: Sequence[Prompt], encode: Callable[[list[Prompt]], tuple[Tensor, ...]]
) -> tuple[Tensor, ...]:
    """Encode each distinct prompt of a batch, texts or token ids, once.

    Args:
        encode: tensors [P, ...] of P prompts.

    Returns:
        Its tensors for all prompts, [B, ...].
    """
    numbers: dict[str | tuple[int, ...], int] = {}
    distinct: list[Prompt] = []
    index = []
    for prompt in prompts:
        key = prompt if isinstance(prompt, str) else tuple(prompt)
        if key not in numbers:
            numbers[key] = len(distinct)
            distinct.append(prompt)
        index.append(numbers[key])
    encoded = encode(distinct)
    if len(distinct) == len(prompts):
        return encoded
    return tuple(tensor[torch.tensor(index, device=tensor.device)] for tensor in encoded)
