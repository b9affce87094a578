"""PURE: collection of an update's buckets, and checks of names and values."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from verl_omni.weight_sync.errors import IncompleteUpdate, summarize_names


class StagedTensors:
    """Tensors of an update, copied out of the transfer buffer, which the next bucket overwrites."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}

    def add(self, bucket: Iterable[tuple[str, Tensor]]) -> None:
        """Copy a bucket.

        Raises:
            IncompleteUpdate: a name arrived twice, or a value is not finite.
        """
        for name, tensor in bucket:
            if name in self.tensors:
                raise IncompleteUpdate(f"{name} arrived twice")
            check_finite(name, tensor)
            self.tensors[name] = tensor.clone()


def check_finite(name: str, tensor: Tensor) -> None:
    """Raise `IncompleteUpdate` for a floating-point tensor with a NaN or an infinity."""
    if not tensor.is_floating_point() or tensor.numel() == 0:
        return
    # torch cannot compare 8-bit floats; 16 bits represent all of their values.
    wide = tensor.to(torch.bfloat16) if tensor.element_size() == 1 else tensor
    # `aminmax` returns NaN if any value is NaN. It needs one pass and no temporary tensor; `isfinite` of all values
    # takes 20 to 40 times as long on a CPU.
    if not all(math.isfinite(extreme.item()) for extreme in torch.aminmax(wide)):
        raise IncompleteUpdate(f"{name} has values that are not finite")


def check_names(expected: Iterable[str], found: Iterable[str]) -> None:
    """Raise `IncompleteUpdate` unless both are the same set of names."""
    wanted = set(expected)
    got = set(found)
    labelled = (("missing", wanted - got), ("unexpected", got - wanted))
    if problems := [f"{label}: {summarize_names(names)}" for label, names in labelled if names]:
        raise IncompleteUpdate("; ".join(problems))
