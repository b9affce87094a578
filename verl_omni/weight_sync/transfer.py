"""Tensors from one process to another on the same host: buckets through shared memory or device IPC.

Both ends have deadlines, and either tells the other when it fails. One pair of sockets serves one update;
the sender owns the buffer and the socket file, and removes both whatever happens. Besides the tensors
themselves, an update takes one buffer: of `bucket_bytes`, or of its largest tensor where that is larger.

    sender                                   receiver
    begin  {buffer}                     ->   opens it, drops the one before
                                        <-   ok | failed {reason}
    bucket {tensors, last}              ->   copies or consumes the bucket
                                        <-   ok | failed {reason}
    abandon {reason}                    ->   raises PeerFailed
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import zmq
from torch import Tensor

from verl_omni.weight_sync.buffers import SEGMENT_PREFIX, Begin, Outgoing, opened, settle
from verl_omni.weight_sync.digest import WORD, digest
from verl_omni.weight_sync.errors import CalledOff, DeadlineExceeded, IncompleteUpdate, PeerFailed, text
from verl_omni.weight_sync.names import socket_path

__all__ = ["SEGMENT_PREFIX", "Bucket", "Packer", "Stop", "receive", "send"]

FIRST_BUFFER = 32 << 20  # bytes; an adapter often needs no more, so the whole bucket is not taken for it
GROWTH = 4
Bucket = list[tuple[str, Tensor]]


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor's place in the buffer, and the digest of its bytes there."""

    shape: torch.Size
    dtype: torch.dtype
    offset: int
    digest: int


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


class Stop:
    """Ends a transfer from another thread: every wait of the `Channel` that has it wakes at once."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()

    def __enter__(self) -> Stop:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._read)
        os.close(self._write)

    def fileno(self) -> int:
        return self._read

    def set(self) -> None:
        """Call the transfer off; safe to repeat."""
        os.write(self._write, b".")


@dataclass
class Channel:
    """One end of a pair of sockets.

    Raises (from `send` and `receive`):
        DeadlineExceeded: the other end was not there, or said nothing, for `deadline` seconds.
        CalledOff: `stop` was set.
    """

    handle: str
    deadline: float
    owner: bool
    stop: Stop | None = None
    _socket: Any = field(default=None, init=False)

    def __enter__(self) -> Channel:
        self._socket = zmq.Context.instance().socket(zmq.PAIR)
        self._socket.setsockopt(zmq.LINGER, 1000)  # milliseconds that a last word may take to leave
        if self.owner:
            self.forget_file()
            self._socket.bind(self.handle)
        else:
            self._socket.connect(self.handle)
        return self

    def __exit__(self, *error: object) -> None:
        self._socket.close()
        if self.owner:
            self.forget_file()

    def meet(self) -> None:
        """Wait until the other end is there: only then can it be told of a failure."""
        self._wait(zmq.POLLOUT, "nobody listened")

    def send(self, message: Any) -> None:
        """Hand over a message; waits until the other end is there."""
        self.meet()
        self._socket.send_pyobj(message)

    def tell(self, message: Any) -> None:
        """A last word, if the other end is still there to hear it; never waits."""
        with contextlib.suppress(zmq.Again):
            self._socket.send_pyobj(message, zmq.NOBLOCK)

    def receive(self) -> Any:
        """The next message."""
        self._wait(zmq.POLLIN, "no answer")
        return self._socket.recv_pyobj()

    def _wait(self, event: int, otherwise: str) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, event)
        if self.stop is not None:
            poller.register(self.stop.fileno(), zmq.POLLIN)
        ready = dict(poller.poll(self.deadline * 1000))
        if self._socket in ready:  # an answer that is already here counts, whatever happened since
            return
        if ready:
            raise CalledOff(f"the transfer on {self.handle} was called off")
        raise DeadlineExceeded(f"{otherwise} within {self.deadline:g} s on {self.handle}")

    def forget_file(self) -> None:
        """Remove the socket's file; safe to repeat, and does not cut off who is connected."""
        if path := socket_path(self.handle):
            with contextlib.suppress(FileNotFoundError):
                os.remove(path)


class Replaceable(Protocol):
    """What `Packer` needs of a buffer."""

    tensor: Tensor

    def replace(self, needed: int, wanted: int) -> Begin: ...


class Packer:
    """Copies tensors into the buffer, and hands the buffer over whenever the next tensor does not fit.

    Args:
        buffer: starts empty; it grows towards `bucket_bytes`, and beyond for a tensor that needs more.
        confirm: hands a message to the receiver, and returns once it has dealt with it.
        bucket_bytes: how large the buffer may become to save round trips.
    """

    def __init__(self, buffer: Replaceable, confirm: Callable[[Any], None], bucket_bytes: int) -> None:
        self._buffer, self._confirm, self._limit = buffer, confirm, bucket_bytes
        self._places: dict[str, tuple[Tensor, int]] = {}
        self._used = 0
        self._names: dict[str, None] = {}

    def put(self, name: str, tensor: Tensor) -> None:
        """Take a tensor.

        Raises:
            IncompleteUpdate: the name was there before.
        """
        if name in self._names:
            raise IncompleteUpdate(f"{name} was sent twice")
        self._names[name] = None
        start = _aligned(self._used, tensor)
        if start + tensor.nbytes > self._buffer.tensor.numel():
            self._flush(None)
            self._grow(tensor.nbytes)
            start = 0
        view = self._buffer.tensor[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        view.copy_(tensor.detach())
        self._places[name] = (view, start)
        self._used = start + tensor.nbytes

    def finish(self) -> list[str]:
        """Hand over what is left, with the names of all; returns them."""
        names = list(self._names)
        self._flush(names)
        return names

    def _flush(self, last: list[str] | None) -> None:
        if not self._places and last is None:
            return
        settle(self._buffer.tensor.device)
        entries = {
            name: Entry(view.shape, view.dtype, start, digest(view)) for name, (view, start) in self._places.items()
        }
        self._places, self._used = {}, 0
        self._confirm(BucketMessage(entries, last))

    def _grow(self, needed: int) -> None:
        size = self._buffer.tensor.numel()
        wanted = max(needed, min(self._limit, max(FIRST_BUFFER, size * GROWTH)), 1)
        if wanted > size:
            self._confirm(self._buffer.replace(max(needed, 1), wanted))


def send(
    weights: Iterable[tuple[str, Tensor]],
    *,
    handle: str,
    bucket_bytes: int,
    device: torch.device | None,
    deadline: float,
    stop: Stop | None = None,
) -> int:
    """Send all `weights` and wait until the receiver has confirmed each bucket. Returns the number of tensors.

    Args:
        weights: taken one at a time once the receiver is there, and not kept.
        bucket_bytes: size that the buffer may grow to; it grows further for a larger tensor.
        device: where the buffer lives for device IPC; None for shared memory.
        deadline: seconds for each answer.
        stop: set from elsewhere to call the transfer off.

    Raises:
        PeerFailed: the receiver failed. DeadlineExceeded: it did not answer. CalledOff: `stop` was set.
        NoRoom: shared memory is full.
        whatever iterating `weights` raises, after telling the receiver.
    """
    with contextlib.closing(Outgoing(device)) as buffer, Channel(handle, deadline, True, stop) as channel:

        def confirm(message: Any) -> None:
            channel.send(message)
            answer: Answer = channel.receive()
            if answer.failed is not None:
                raise PeerFailed(f"the engine refused the weights: {answer.failed}")

        try:
            channel.meet()
            packer = Packer(buffer, confirm, bucket_bytes)
            for name, tensor in weights:
                packer.put(name, tensor)
            return len(packer.finish())
        except (PeerFailed, DeadlineExceeded):
            raise
        except BaseException as error:
            channel.tell(Abandon(text(error)))
            raise


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
            names = _take_buckets(channel, consume, device)
        except PeerFailed:
            raise
        except BaseException as error:
            channel.tell(Answer(failed=text(error)))
            if isinstance(error, DeadlineExceeded):
                channel.forget_file()  # a sender that was killed does not
            raise
        # The last word only after the buffer is dropped: the sender frees it the moment it hears this.
        channel.send(Answer())
        return names


def _take_buckets(channel: Channel, consume: Callable[[Bucket], None], device: torch.device) -> list[str]:
    buffer = torch.empty(0, dtype=torch.uint8)
    while True:
        match channel.receive():
            case Abandon(reason=reason):
                raise PeerFailed(f"the trainer abandoned the update: {reason}")
            case Begin() as begin:
                buffer = opened(begin, device)
            case BucketMessage(entries=entries, last=last):
                consume(_views(buffer, entries, device))
                settle(device)
                if last is not None:
                    return last
            case other:
                raise IncompleteUpdate(f"the trainer sent {type(other).__name__}, which is no message of an update")
        channel.send(Answer())


def _aligned(offset: int, tensor: Tensor) -> int:
    width = max(WORD, tensor.element_size())
    return (offset + width - 1) // width * width


def _views(buffer: Tensor, entries: dict[str, Entry], device: torch.device) -> Bucket:
    found: Bucket = []
    for name, entry in entries.items():
        size = entry.shape.numel() * entry.dtype.itemsize
        view = buffer[entry.offset : entry.offset + size].view(entry.dtype).view(entry.shape)
        if digest(view) != entry.digest:
            raise IncompleteUpdate(f"{name} arrived with other bytes than were sent")
        found.append((name, view.to(device)))
    return found
