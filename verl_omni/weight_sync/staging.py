"""PURE: collect the buckets of an update and check that it is whole."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from verl_omni.weight_sync.errors import IncompleteUpdate


class Staging:
    """Tensors of an update, copied out of the transfer buffer, which is used again for the next bucket."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}

    def add(self, bucket: Iterable[tuple[str, Tensor]]) -> None:
        """Copy a bucket.

        Raises:
            IncompleteUpdate: a name came twice, or a value is not finite.
        """
        for name, tensor in bucket:
            if name in self.tensors:
                raise IncompleteUpdate(f"{name} arrived twice")
            check_finite(name, tensor)
            self.tensors[name] = tensor.clone()


def check_finite(name: str, tensor: Tensor) -> None:
    """Raise `IncompleteUpdate` for a floating-point tensor with a NaN or an infinity."""
    if not tensor.is_floating_point():
        return
    # torch has no isfinite for 8-bit floats; 16 bits hold all of their values.
    wide = tensor.to(torch.bfloat16) if tensor.element_size() == 1 else tensor
    if not bool(torch.isfinite(wide).all()):
        raise IncompleteUpdate(f"{name} has values that are not finite")


def check_names(expected: Iterable[str], found: Iterable[str]) -> None:
    """Raise `IncompleteUpdate` unless both are the same names."""
    wanted, got = set(expected), set(found)
    if wanted == got:
        return
    parts = [
        f"{word}: {few(names)}" for word, names in (("missing", wanted - got), ("unexpected", got - wanted)) if names
    ]
    raise IncompleteUpdate("; ".join(parts))


def few(names: Iterable[str]) -> str:
    """Up to five names, sorted, and how many there are."""
    ordered = sorted(names)
    return f"{', '.join(ordered[:5])}{' …' if len(ordered) > 5 else ''} ({len(ordered)})"
