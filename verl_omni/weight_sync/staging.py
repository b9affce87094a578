"""PURE: collect the buckets of an update and check that it is whole."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import torch
from torch import Tensor

from verl_omni.weight_sync.errors import IncompleteUpdate


def digest(tensor: Tensor) -> int:
    """CRC-32 of a tensor's bytes in host memory; shape and dtype are compared apart."""
    flat = tensor.detach().contiguous().view(-1).view(torch.uint8)
    return zlib.crc32(flat.cpu().numpy())


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
    if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
        raise IncompleteUpdate(f"{name} has values that are not finite")


def check_names(expected: Iterable[str], found: Iterable[str]) -> None:
    """Raise `IncompleteUpdate` unless both are the same names."""
    wanted, got = set(expected), set(found)
    if wanted == got:
        return
    parts = [
        f"{word}: {', '.join(sorted(names)[:5])}{' …' if len(names) > 5 else ''} ({len(names)})"
        for word, names in (("missing", wanted - got), ("unexpected", got - wanted))
        if names
    ]
    raise IncompleteUpdate("; ".join(parts))
