"""Buckets of an update in CPU memory: one is filled while another is sent."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from verl_omni.weight_sync.errors import IncompleteUpdate
from verl_omni.weight_sync.messages import BucketMessage, Entry
from verl_omni.weight_sync.packing import ALIGNMENT, aligned, describe, pack

# A larger bucket costs more: the first use of its pages several times what copying into them costs, and the digest of
# bytes that have left the CPU's cache (benchmarks/fan_out.py).
PREFERRED_BYTES = 8 << 20
# A tensor in CPU memory that is at least so large is sent from there: a system call costs less than a copy.
LARGE_BYTES = 1 << 20


class BucketFiller:
    """Puts tensors into buckets, of which two exist at a time.

    Args:
        weights: (name, tensor), read one at a time. A tensor is kept as long as its bucket is valid, and must not
            change until then.
        limit: maximum size of a bucket in bytes, unless one tensor is larger. No bucket of several tensors exceeds
            `PREFERRED_BYTES`.
    """

    def __init__(self, weights: Iterator[tuple[str, Tensor]], limit: int) -> None:
        self._weights = weights
        self._limit = min(limit, PREFERRED_BYTES)
        self._buffers = [torch.empty(0, dtype=torch.uint8), torch.empty(0, dtype=torch.uint8)]  # they take turns
        self._next: tuple[str, Tensor] | None = None
        self._names: dict[str, None] = {}
        self._ended = False

    @torch.no_grad()  # grad mode is thread-local
    def fill(self) -> tuple[BucketMessage, list[Tensor]] | None:
        """The next bucket and its bytes, uint8 [n] each, valid until the call after the next; None after the last.

        Raises:
            IncompleteUpdate: a name was sent twice. Any error raised by iterating the weights.
        """
        if self._ended:
            return None
        self._buffers.reverse()
        bucket = _Bucket(self._buffers[0], self._limit)
        while (item := self._take()) is not None:
            name, tensor = item
            if not bucket.has_room(tensor.nbytes):
                self._next = item
                break
            if name in self._names:
                raise IncompleteUpdate(f"{name} was sent twice")
            self._names[name] = None
            bucket.add(name, tensor)
        else:
            self._ended = True
        self._buffers[0] = bucket.buffer
        return BucketMessage(bucket.entries, list(self._names) if self._ended else None), bucket.parts()

    def _take(self) -> tuple[str, Tensor] | None:
        item = self._next
        self._next = None
        return item if item is not None else next(self._weights, None)


class _Bucket:
    """Large tensors in CPU memory, and between them parts of a buffer into which all others are copied.

    Attributes:
        buffer: replaced by a larger one if it is too small.
    """

    def __init__(self, buffer: Tensor, limit: int) -> None:
        self.buffer = buffer
        self._limit = limit
        self.entries: dict[str, Entry] = {}
        self._parts: list[Tensor | slice] = []  # a slice is one of the buffer
        self._size = self._copied = 0  # bytes of the bucket, and bytes copied to the buffer

    def has_room(self, size: int) -> bool:
        """Whether a tensor of `size` bytes may be added. The first one always may."""
        return not self.entries or aligned(self._size) + size <= self._limit

    def add(self, name: str, tensor: Tensor) -> None:
        """Append a tensor."""
        begin = aligned(self._size)
        gap = begin - self._size
        if _is_large(tensor):
            self._extend(gap)
            content = tensor.detach().view(-1).view(torch.uint8)
            self.entries[name] = describe(content, begin, tensor)
            self._parts.append(content)
        else:
            self.entries[name] = pack(self._extend(gap + tensor.nbytes)[gap:], begin, tensor)
        self._size = begin + tensor.nbytes

    def parts(self) -> list[Tensor]:
        """The bytes of the bucket, in order."""
        return [part if isinstance(part, Tensor) else self.buffer[part] for part in self._parts]

    def _extend(self, size: int) -> Tensor:
        """Append `size` bytes of the buffer. Alignment is kept, because the sizes of large tensors are aligned."""
        begin = self._copied
        self._copied = self._copied + size
        if self.buffer.numel() < self._copied:
            # At once to the limit, unless a first tensor is small: an adapter is a fraction of a bucket.
            larger = torch.empty(max(self._copied, min(self._limit, 2 * self.buffer.numel())), dtype=torch.uint8)
            larger[: self.buffer.numel()] = self.buffer
            self.buffer = larger
        last = self._parts[-1] if self._parts else None
        if isinstance(last, slice):
            self._parts[-1] = slice(last.start, self._copied)
        elif size:
            self._parts.append(slice(begin, self._copied))
        return self.buffer[begin : self._copied]


def _is_large(tensor: Tensor) -> bool:
    """Whether the tensor can be sent from where it is, and that is worth it."""
    in_place = tensor.device.type == "cpu" and tensor.is_contiguous() and tensor.nbytes % ALIGNMENT == 0
    return in_place and tensor.nbytes >= LARGE_BYTES
