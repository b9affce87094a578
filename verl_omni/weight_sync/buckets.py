"""Buckets: tensors side by side in bounded memory, each with its position and the digest of its bytes.

`Packer` fills one half of a buffer while the receiver on this machine reads the other half. `BucketFiller` fills one of
two buffers in CPU memory while the network sends the other.
"""

import math
from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor
from xxhash import xxh3_64_intdigest

from verl_omni.weight_sync.buffers import SendBuffer, synchronize
from verl_omni.weight_sync.errors import IncompleteUpdate
from verl_omni.weight_sync.messages import BucketMessage, Entry, Message, dtype_name, parse_dtype

# Size of a buffer in shared memory. Allocating a page costs several times what copying it costs
# (benchmarks/weight_transfer.py), so the buffer stays small enough for the CPU's cache. It starts at this size, because
# both ends wait each time it grows.
SHARED_MEMORY_BYTES = INITIAL_BYTES = 8 << 20
GROWTH = 8  # on an accelerator, where allocating memory is cheap
Bucket = list[tuple[str, Tensor]]
ALIGNMENT = 16  # bytes; of the widest element, complex128
# A larger bucket costs more: the first use of its pages several times what copying into them costs, and the digest of
# bytes that have left the CPU's cache (benchmarks/fan_out.py).
PREFERRED_BYTES = 8 << 20
# A tensor in CPU memory that is at least so large is sent from there: a system call costs less than a copy.
LARGE_BYTES = 1 << 20
WORD = 8  # bytes
CHUNK = 1 << 22  # words at a time: limits temporary tensors on a device to 3 x 32 MiB
# Odd multipliers: 2^64 divided by the golden ratio, and the one of splitmix64.
_WORD_FACTOR = -7046029254386353131
_POSITION_FACTOR = -4658895280553007687


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

    def __init__(
        self, buffer: SendBuffer, receiver: Receiver, limit: int, preferred: int = SHARED_MEMORY_BYTES
    ) -> None:
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


def compute_digest(flat: Tensor) -> int:
    """Digest of bytes, uint8 [n]: XXH3 (64 bits) in CPU memory; a 64-bit sum on an accelerator, computed there."""
    return xxh3_64_intdigest(flat.numpy()) if flat.device.type == "cpu" else device_digest(flat)


def device_digest(flat: Tensor) -> int:
    """Sum over 8-byte words of `mix(word) * odd(position)` modulo 2^64; a changed or moved word changes it.

    Args:
        flat: uint8 [n], aligned to 8 bytes. Integer addition makes the result independent of the order of summation.
    """
    whole_words = flat.numel() // WORD * WORD
    parts = [flat[:whole_words].view(torch.int64), flat[whole_words:].to(torch.int64)]
    total = torch.zeros((), dtype=torch.int64, device=flat.device)
    position = 0
    for part in parts:
        for words in part.split(CHUNK):
            mixed = words * _WORD_FACTOR
            mixed ^= mixed >> 29
            end = position + words.numel()
            positions = torch.arange(position, end, device=flat.device, dtype=torch.int64)
            total += (mixed * (positions.mul_(2).add_(1).mul_(_POSITION_FACTOR))).sum()
            position = end
    return int(total)
