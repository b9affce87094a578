"""Packing of tensors into a bounded buffer, one half of which is filled while the receiver reads the other."""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

from verl_omni.weight_sync.buffers import synchronize
from verl_omni.weight_sync.digest import compute_digest
from verl_omni.weight_sync.errors import IncompleteUpdate
from verl_omni.weight_sync.messages import BucketMessage, BufferMessage, Entry, Message, dtype_name, parse_dtype

# Size of a buffer in shared memory. Allocating a page costs several times what copying it costs
# (benchmarks/weight_transfer.py), so the buffer stays small enough for the CPU's cache. It starts at this size, because
# both ends wait each time it grows.
SHARED_MEMORY_BYTES = INITIAL_BYTES = 8 << 20
GROWTH = 8  # on an accelerator, where allocating memory is cheap
Bucket = list[tuple[str, Tensor]]
ALIGNMENT = 16  # bytes; of the widest element, complex128


class Buffer(Protocol):
    """The buffer that `Packer` fills: `buffers.SendBuffer`."""

    tensor: Tensor

    def replace(self, needed: int, preferred: int) -> BufferMessage: ...


class Receiver(Protocol):
    """The receiver that `Packer` sends to: `channel.ReceiverProxy`."""

    def send(self, message: Message) -> None: ...

    def wait_for_replies(self, pending: int) -> None: ...


class Packer:
    """Copies tensors into the buffer, and sends one half of it whenever the next tensor does not fit there.

    A tensor that needs more than half of the buffer gets the whole buffer.

    Args:
        buffer: starts empty; it grows to `preferred` bytes, and further until each tensor fits into one half.
        receiver: reads each bucket and replies when it no longer needs the memory.
        limit: maximum size of the buffer in bytes, unless one tensor is larger.
        preferred: size in bytes beyond which a larger buffer saves no time.
    """

    def __init__(self, buffer: Buffer, receiver: Receiver, limit: int, preferred: int = SHARED_MEMORY_BYTES) -> None:
        self._buffer = buffer
        self._receiver = receiver
        self._limit = limit
        self._preferred = preferred
        self._entries: dict[str, Entry] = {}
        self._start = self._used = self._end = 0  # byte offsets of the part that is being filled
        self._requested = 0  # requested size of the buffer, which is smaller if memory is short
        self._names: dict[str, None] = {}

    def add(self, name: str, tensor: Tensor) -> None:
        """Copy a tensor into the buffer.

        Raises:
            IncompleteUpdate: the name was added before.
        """
        if name in self._names:
            raise IncompleteUpdate(f"{name} was sent twice")
        self._names[name] = None
        if aligned(self._used) + tensor.nbytes > self._end:
            self._flush(None)
            self._start_part(tensor.nbytes)
        begin = aligned(self._used)
        self._used = begin + tensor.nbytes
        self._entries[name] = pack(self._buffer.tensor[begin : self._used], begin, tensor)

    def finish(self) -> list[str]:
        """Send the last bucket, with the names of all tensors, and wait for the receiver. Returns the names."""
        names = list(self._names)
        self._flush(names)
        self._receiver.wait_for_replies(0)
        return names

    def _flush(self, last: list[str] | None) -> None:
        if not self._entries and last is None:
            return
        synchronize(self._buffer.tensor.device)
        self._receiver.send(BucketMessage(self._entries, last))
        self._entries = {}

    def _start_part(self, needed: int) -> None:
        """Start a part of the buffer that the receiver no longer reads and that has room for `needed` bytes."""
        size, half = self._sizes()
        both_halves = 2 << max(needed - 1, 0).bit_length()  # a power of two, so that the buffer seldom grows
        roomy = min(self._preferred, max(INITIAL_BYTES, size * GROWTH))
        preferred = max(needed, min(self._limit, max(roomy, both_halves)), 1)
        in_first_half = self._start == 0 and self._end == half
        if needed <= half and in_first_half:
            self._start = half
            self._end = size
            self._receiver.wait_for_replies(1)  # the half that was just sent may still be read
        else:
            if needed > size or preferred > self._requested:
                self._receiver.wait_for_replies(0)
                self._receiver.send(self._buffer.replace(max(needed, 1), preferred))
                # If the sender fails now, it removes the buffer before the receiver has opened it.
                self._receiver.wait_for_replies(0)
                self._requested = preferred
                size, half = self._sizes()
            else:
                self._receiver.wait_for_replies(1 if self._start > 0 and needed <= half else 0)
            self._start = 0
            self._end = half if needed <= half else size
        self._used = self._start

    def _sizes(self) -> tuple[int, int]:
        size = self._buffer.tensor.numel()
        return size, size // 2 // ALIGNMENT * ALIGNMENT


def pack(target: Tensor, offset: int, tensor: Tensor) -> Entry:
    """Copy a tensor into bytes, uint8 [tensor.nbytes], which begin at `offset` of a bucket."""
    # `view_as`, because `view` takes three times as long to read a shape.
    target.view(tensor.dtype).view_as(tensor).copy_(tensor.detach())
    # The digest is computed now, while the CPU's cache still holds these bytes.
    return describe(target, offset, tensor)


def describe(content: Tensor, offset: int, tensor: Tensor) -> Entry:
    """Entry of a tensor whose bytes, uint8 [tensor.nbytes], begin at `offset` of a bucket."""
    return Entry(tensor.shape, dtype_name(tensor.dtype), offset, compute_digest(content))


def unpack(buffer: Tensor, entries: dict[str, Entry], device: torch.device) -> Bucket:
    """Tensors of a bucket, as views into the buffer, on `device`.

    Raises:
        IncompleteUpdate: the bytes of a tensor are not those that were sent.
    """
    bucket: Bucket = []
    for name, entry in entries.items():
        dtype = parse_dtype(entry.dtype)
        size = math.prod(entry.shape) * dtype.itemsize
        content = buffer[entry.offset : entry.offset + size]
        if compute_digest(content) != entry.digest:
            raise IncompleteUpdate(f"digest mismatch: the received bytes of {name} are not those that were sent")
        # Without `size=`, torch first looks for a dtype argument, which doubles the time.
        bucket.append((name, content.view(dtype).view(size=entry.shape).to(device)))
    return bucket


def aligned(offset: int) -> int:
    """The next offset at which a tensor of any dtype may begin."""
    return (offset + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
