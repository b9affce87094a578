"""Buckets of an update in host memory: one is filled while another is sent."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from verl_omni.weight_sync.errors import IncompleteUpdate
from verl_omni.weight_sync.messages import BucketMessage, Entry
from verl_omni.weight_sync.packing import aligned, pack

# A larger bucket costs more: the first use of its pages several times what copying into them costs, and the digest of
# bytes that have left the CPU's cache (benchmarks/fan_out.py).
PREFERRED_BYTES = 8 << 20


class BucketFiller:
    """Copies tensors into two buffers in turn, which stay small where the tensors are.

    Args:
        weights: (name, tensor), read one at a time and not kept.
        limit: maximum size of a bucket in bytes, unless one tensor is larger. No bucket of several tensors exceeds
            `PREFERRED_BYTES`.
    """

    def __init__(self, weights: Iterator[tuple[str, Tensor]], limit: int) -> None:
        self._weights, self._limit = weights, min(limit, PREFERRED_BYTES)
        self._buffers = [torch.empty(0, dtype=torch.uint8), torch.empty(0, dtype=torch.uint8)]
        self._next: tuple[str, Tensor] | None = None
        self._names: dict[str, None] = {}
        self._ended = False

    @torch.no_grad()  # grad mode is thread-local
    def fill(self) -> tuple[BucketMessage, Tensor] | None:
        """The next bucket and its bytes, uint8 [n], valid until the call after the next; None after the last.

        Raises:
            IncompleteUpdate: a name was sent twice. Any error raised by iterating the weights.
        """
        if self._ended:
            return None
        self._buffers.reverse()
        entries: dict[str, Entry] = {}
        used = 0
        while (item := self._take()) is not None:
            name, tensor = item
            begin = aligned(used)
            if entries and begin + tensor.nbytes > self._limit:
                self._next = item
                return BucketMessage(entries), self._buffers[0][:used]
            if name in self._names:
                raise IncompleteUpdate(f"{name} was sent twice")
            self._names[name] = None
            used = begin + tensor.nbytes
            self._grow(used)
            entries[name] = pack(self._buffers[0], begin, tensor)
        self._ended = True
        return BucketMessage(entries, list(self._names)), self._buffers[0][:used]

    def _take(self) -> tuple[str, Tensor] | None:
        item, self._next = self._next, None
        return item if item is not None else next(self._weights, None)

    def _grow(self, needed: int) -> None:
        held = self._buffers[0]
        if held.numel() < needed:
            # At once to the limit, unless a first tensor is small: an adapter is a fraction of a bucket.
            larger = torch.empty(max(needed, min(self._limit, 2 * held.numel())), dtype=torch.uint8)
            larger[: held.numel()] = held
            self._buffers[0] = larger
