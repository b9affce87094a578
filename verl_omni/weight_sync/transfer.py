"""Tensors from one process to another on the same host: buckets through shared memory or device IPC.

Both ends have deadlines, and either tells the other when it fails. One pair of sockets serves one update;
the sender owns the buffer and the socket file, and removes both whatever happens.

    sender                                   receiver
    begin  {buffer}                     ->
                                        <-   ok | failed {reason}
    bucket {tensors, last}              ->   copies or consumes the bucket
                                        <-   ok | failed {reason}
    abandon {reason}                    ->   raises PeerFailed
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing import resource_tracker, shared_memory
from typing import Any

import torch
import zmq
from torch import Tensor

from verl_omni.weight_sync.errors import DeadlineExceeded, IncompleteUpdate, PeerFailed
from verl_omni.weight_sync.names import socket_path
from verl_omni.weight_sync.staging import digest

SEGMENT_PREFIX = "verl_omni_weights_"
Bucket = list[tuple[str, Tensor]]


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor's place in the buffer; `digest` is None where the bytes never visit the host."""

    shape: torch.Size
    dtype: torch.dtype
    offset: int
    digest: int | None


@dataclass(frozen=True, slots=True)
class Begin:
    """The buffer of an update: the name of a shared-memory segment, or a device IPC handle."""

    size: int
    segment: str | None = None
    device_handle: Any = None


@dataclass(frozen=True, slots=True)
class BucketMessage:
    """Some tensors are in the buffer; `last` carries the names of the whole update."""

    entries: dict[str, Entry]
    last: list[str] | None = None


@dataclass(frozen=True, slots=True)
class Abandon:
    """The sender failed."""

    reason: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The receiver's word on the last message."""

    failed: str | None = None


@dataclass
class Channel:
    """One end of a pair of sockets.

    Raises (from `send` and `receive`):
        DeadlineExceeded: the other end was not there, or said nothing, for `deadline` seconds.
    """

    handle: str
    deadline: float
    owner: bool
    _socket: Any = field(default=None, init=False)

    def __enter__(self) -> Channel:
        self._socket = zmq.Context.instance().socket(zmq.PAIR)
        self._socket.setsockopt(zmq.LINGER, 1000)  # milliseconds that a last word may take to leave
        if self.owner:
            self._forget_file()
            self._socket.bind(self.handle)
        else:
            self._socket.connect(self.handle)
        return self

    def __exit__(self, *error: object) -> None:
        self._socket.close()
        if self.owner:
            self._forget_file()

    def send(self, message: Any) -> None:
        """Hand over a message; waits until the other end is there."""
        if not self._socket.poll(self.deadline * 1000, zmq.POLLOUT):
            raise DeadlineExceeded(f"nobody listened within {self.deadline:g} s on {self.handle}")
        self._socket.send_pyobj(message)

    def tell(self, message: Any) -> None:
        """A last word, if the other end is still there to hear it; never waits."""
        with contextlib.suppress(zmq.Again):
            self._socket.send_pyobj(message, zmq.NOBLOCK)

    def receive(self) -> Any:
        """The next message."""
        if not self._socket.poll(self.deadline * 1000):
            raise DeadlineExceeded(f"no answer within {self.deadline:g} s on {self.handle}")
        return self._socket.recv_pyobj()

    def _forget_file(self) -> None:
        if path := socket_path(self.handle):
            with contextlib.suppress(FileNotFoundError):
                os.remove(path)


def send(
    weights: Iterable[tuple[str, Tensor]],
    *,
    handle: str,
    bucket_bytes: int,
    device: torch.device | None,
    deadline: float,
) -> int:
    """Send all `weights` and wait until the receiver has confirmed each bucket. Returns the number of tensors.

    Args:
        bucket_bytes: size of the buffer; it grows to the largest tensor.
        device: where the buffer lives for device IPC; None for shared memory.
        deadline: seconds for each answer.

    Raises:
        PeerFailed: the receiver failed. DeadlineExceeded: it did not answer.
        whatever iterating `weights` raises, after telling the receiver.
    """
    named = list(weights)
    size = max([bucket_bytes, *(tensor.nbytes for _, tensor in named)])
    with Channel(handle, deadline, owner=True) as channel, _buffer(size, device) as (buffer, begin):
        try:
            _confirmed(channel, begin)
            names = [name for name, _ in named]
            for bucket, is_last in _buckets(named, size):
                entries = _fill(buffer, bucket, digested=device is None)
                _confirmed(channel, BucketMessage(entries, names if is_last else None))
        except (PeerFailed, DeadlineExceeded):
            raise
        except BaseException as error:
            channel.tell(Abandon(repr(error)))
            raise
    return len(named)


def receive(consume: Callable[[Bucket], None], *, handle: str, device: torch.device, deadline: float) -> list[str]:
    """Take an update, bucket by bucket. Returns all names in the order they were sent.

    Args:
        consume: is given views into the buffer, valid during the call only.

    Raises:
        PeerFailed: the sender abandoned the update. DeadlineExceeded: it went silent.
        IncompleteUpdate: a tensor's bytes are not those that were sent.
        whatever `consume` raises, after telling the sender.
    """
    with Channel(handle, deadline, owner=False) as channel:
        try:
            with _opened(channel.receive(), device) as buffer:
                channel.send(Answer())
                while True:
                    message = _not_abandoned(channel.receive())
                    consume(_views(buffer, message.entries, device))
                    if message.last is not None:
                        names = message.last
                        break
                    channel.send(Answer())
        except PeerFailed:
            raise
        except BaseException as error:
            channel.tell(Answer(failed=f"{type(error).__name__}: {error}"))
            raise
        # The last word only after the buffer is closed: the sender frees it the moment it hears this.
        channel.send(Answer())
        return names


def _confirmed(channel: Channel, message: Any) -> None:
    channel.send(message)
    answer: Answer = channel.receive()
    if answer.failed is not None:
        raise PeerFailed(f"the engine refused the weights: {answer.failed}")


def _not_abandoned(message: Any) -> Any:
    if isinstance(message, Abandon):
        raise PeerFailed(f"the trainer abandoned the update: {message.reason}")
    return message


def _buckets(named: Bucket, size: int) -> Iterator[tuple[Bucket, bool]]:
    """Tensors in order, packed into buckets of at most `size` bytes; at least one bucket."""
    bucket: Bucket = []
    used = 0
    for name, tensor in named:
        start = _aligned(used, tensor)
        if bucket and start + tensor.nbytes > size:
            yield bucket, False
            bucket, used, start = [], 0, 0
        bucket.append((name, tensor))
        used = start + tensor.nbytes
    yield bucket, True


def _aligned(offset: int, tensor: Tensor) -> int:
    width = tensor.element_size()
    return (offset + width - 1) // width * width


def _fill(buffer: Tensor, bucket: Bucket, *, digested: bool) -> dict[str, Entry]:
    entries: dict[str, Entry] = {}
    offset = 0
    for name, tensor in bucket:
        if name in entries:
            raise IncompleteUpdate(f"{name} was sent twice")
        offset = _aligned(offset, tensor)
        view = buffer[offset : offset + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        view.copy_(tensor.detach())
        entries[name] = Entry(tensor.shape, tensor.dtype, offset, digest(view) if digested else None)
        offset += tensor.nbytes
    if buffer.is_cuda:
        torch.cuda.synchronize(buffer.device)
    return entries


def _views(buffer: Tensor, entries: dict[str, Entry], device: torch.device) -> Bucket:
    found: Bucket = []
    for name, entry in entries.items():
        size = entry.shape.numel() * entry.dtype.itemsize
        view = buffer[entry.offset : entry.offset + size].view(entry.dtype).view(entry.shape)
        if entry.digest is not None and digest(view) != entry.digest:
            raise IncompleteUpdate(f"{name} arrived with other bytes than were sent")
        found.append((name, view.to(device)))
    return found


@contextlib.contextmanager
def _buffer(size: int, device: torch.device | None) -> Iterator[tuple[Tensor, Begin]]:
    """The sender's buffer and how the receiver finds it."""
    if device is not None:
        from torch.multiprocessing.reductions import reduce_tensor

        tensor = torch.empty(size, dtype=torch.uint8, device=device)
        yield tensor, Begin(size, device_handle=reduce_tensor(tensor))
        return
    segment = shared_memory.SharedMemory(f"{SEGMENT_PREFIX}{secrets.token_hex(8)}", create=True, size=size)
    try:
        view = torch.frombuffer(segment.buf, dtype=torch.uint8)
        yield view, Begin(size, segment=segment.name)
        del view
    finally:
        segment.unlink()
        with contextlib.suppress(BufferError):  # a traceback may still hold the view; the segment is gone anyway
            segment.close()


@contextlib.contextmanager
def _opened(begin: Any, device: torch.device) -> Iterator[Tensor]:
    """The receiver's view of the sender's buffer."""
    begin = _not_abandoned(begin)
    if begin.segment is None:
        rebuild, arguments = begin.device_handle
        place = list(arguments)
        place[6] = device.index  # the two processes may count devices differently
        yield rebuild(*place)
        return
    segment = shared_memory.SharedMemory(begin.segment)
    # Only the sender removes it; this process's tracker would try again at exit and complain.
    resource_tracker.unregister(segment._name, "shared_memory")  # type: ignore[attr-defined]
    try:
        view = torch.frombuffer(segment.buf, dtype=torch.uint8)[: begin.size]
        yield view
        del view
    finally:
        with contextlib.suppress(BufferError):
            segment.close()
