"""Tensors into a bounded buffer, of which one half is filled while the receiver empties the other."""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

from verl_omni.weight_sync.buffers import settle
from verl_omni.weight_sync.digest import digest
from verl_omni.weight_sync.errors import IncompleteUpdate
from verl_omni.weight_sync.messages import Begin, BucketMessage, Entry, Message, dtype_of, name_of

# Bytes. A page of shared memory costs several times what copying it does (benchmarks/weight_transfer.py), so the
# buffer stays small enough for the processor's cache. It has that size at once: each time it grows, both ends wait.
ENOUGH = FIRST = 8 << 20
GROWTH = 8  # on a device, where pages cost nothing
Bucket = list[tuple[str, Tensor]]
ALIGNMENT = 16  # bytes; of the widest element, complex128


class Replaceable(Protocol):
    """What `Packer` needs of a buffer."""

    tensor: Tensor

    def replace(self, needed: int, wanted: int) -> Begin: ...


class Confirming(Protocol):
    """What `Packer` needs of the receiver: `channel.Listener`."""

    def give(self, message: Message) -> None: ...

    def wait(self, unconfirmed: int) -> None: ...


class Packer:
    """Copies tensors into the buffer, and hands a half of it over whenever the next tensor does not fit there.

    A tensor that needs more than half of the buffer has the whole to itself.

    Args:
        buffer: starts empty; it grows to `enough` bytes, and for larger tensors, so that they fit into one half.
        receiver: reads what is handed over, and confirms it when it needs it no longer.
        limit: bytes that the buffer may have; only a tensor that is larger than that makes it larger.
        enough: bytes beyond which room for more tensors saves no time.
    """

    def __init__(self, buffer: Replaceable, receiver: Confirming, limit: int, enough: int = ENOUGH) -> None:
        self._buffer, self._receiver, self._limit, self._enough = buffer, receiver, limit, enough
        self._entries: dict[str, Entry] = {}
        self._start = self._used = self._end = 0  # bytes of the buffer: the part that is being filled
        self._asked = 0  # size of buffer; memory may have been too short for it
        self._names: dict[str, None] = {}

    def put(self, name: str, tensor: Tensor) -> None:
        """Take a tensor.

        Raises:
            IncompleteUpdate: the name was there before.
        """
        if name in self._names:
            raise IncompleteUpdate(f"{name} was sent twice")
        self._names[name] = None
        if _aligned(self._used) + tensor.nbytes > self._end:
            self._flush(None)
            self._take_part(tensor.nbytes)
        begin = _aligned(self._used)
        self._used = begin + tensor.nbytes
        place = self._buffer.tensor[begin : self._used]
        # `view_as`, because `view` takes three times as long to read a shape.
        place.view(tensor.dtype).view_as(tensor).copy_(tensor.detach())
        # Now, while the processor's cache still has these bytes.
        self._entries[name] = Entry(tensor.shape, name_of(tensor.dtype), begin, digest(place))

    def finish(self) -> list[str]:
        """Hand over what is left, with the names of all, and wait for the receiver; returns the names."""
        names = list(self._names)
        self._flush(names)
        self._receiver.wait(0)
        return names

    def _flush(self, last: list[str] | None) -> None:
        if not self._entries and last is None:
            return
        settle(self._buffer.tensor.device)
        self._receiver.give(BucketMessage(self._entries, last))
        self._entries = {}

    def _take_part(self, needed: int) -> None:
        """Begin a part of the buffer that the receiver does not read any more and where `needed` bytes fit."""
        size, half = self._sizes()
        both_halves = 2 << max(needed - 1, 0).bit_length()  # a power of two, so that it grows seldom
        roomy = min(self._enough, max(FIRST, size * GROWTH))
        wanted = max(needed, min(self._limit, max(roomy, both_halves)), 1)
        in_first_half = self._start == 0 and self._end == half
        if needed <= half and in_first_half:
            self._start, self._end = half, size
            self._receiver.wait(1)  # the half that was handed over a moment ago may still be read
        else:
            if needed > size or wanted > self._asked:
                self._receiver.wait(0)
                self._receiver.give(self._buffer.replace(max(needed, 1), wanted))
                self._receiver.wait(0)  # a sender that fails now removes the buffer, which nobody could open then
                self._asked = wanted
                size, half = self._sizes()
            else:
                self._receiver.wait(1 if self._start > 0 and needed <= half else 0)
            self._start, self._end = 0, half if needed <= half else size
        self._used = self._start

    def _sizes(self) -> tuple[int, int]:
        size = self._buffer.tensor.numel()
        return size, size // 2 // ALIGNMENT * ALIGNMENT


def unpacked(buffer: Tensor, entries: dict[str, Entry], device: torch.device) -> Bucket:
    """Views into the buffer, on `device`.

    Raises:
        IncompleteUpdate: a tensor's bytes are not those that were sent.
    """
    found: Bucket = []
    for name, entry in entries.items():
        dtype = dtype_of(entry.dtype)
        size = math.prod(entry.shape) * dtype.itemsize
        place = buffer[entry.offset : entry.offset + size]
        if digest(place) != entry.digest:
            raise IncompleteUpdate(f"{name} arrived with other bytes than were sent")
        # `size=`, because torch would look for a dtype there first, which takes as long again.
        found.append((name, place.view(dtype).view(size=entry.shape).to(device)))
    return found


def _aligned(offset: int) -> int:
    return (offset + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
