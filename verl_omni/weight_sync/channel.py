"""The words of a transfer, and the pair of sockets that carries them, with a deadline on every wait."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import zmq

from verl_omni.weight_sync.errors import CalledOff, DeadlineExceeded, PeerFailed
from verl_omni.weight_sync.names import socket_path


class Entry(NamedTuple):
    """A tensor's place in the buffer, and the digest of its bytes there. A tuple: a model has many to pickle."""

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
    """The receiver's word on one message."""

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

    Raises (from every method that waits):
        DeadlineExceeded: the other end was not there, or said nothing, for `deadline` seconds.
        CalledOff: `stop` was set.
    """

    handle: str
    deadline: float
    owner: bool
    stop: Stop | None = None
    _socket: Any = field(default=None, init=False)
    _poller: Any = field(default=None, init=False)

    def __enter__(self) -> Channel:
        self._socket = zmq.Context.instance().socket(zmq.PAIR)
        self._socket.setsockopt(zmq.LINGER, 1000)  # milliseconds that a last word may take to leave
        # Milliseconds between two tries while the other end is not there (100 by default): the receiver is told first.
        self._socket.setsockopt(zmq.RECONNECT_IVL, 2)
        if self.owner:
            self.forget_file()
            self._socket.bind(self.handle)
        else:
            self._socket.connect(self.handle)
        self._poller = zmq.Poller()
        if self.stop is not None:
            self._poller.register(self.stop.fileno(), zmq.POLLIN)
        return self

    def __exit__(self, *error: object) -> None:
        self._socket.close()
        if self.owner:
            self.forget_file()

    def meet(self) -> None:
        """Wait until the other end is there: only then can it be told of a failure."""
        self._wait(zmq.POLLOUT, "nobody listened")

    def heard(self) -> bool:
        """Wait until there is a message (True), or else until one can be sent (False)."""
        return bool(self._wait(zmq.POLLIN | zmq.POLLOUT, "nobody listened") & zmq.POLLIN)

    def send(self, message: Any) -> None:
        """Hand over a message; waits until the other end is there."""
        self.meet()
        self.post(message)

    def post(self, message: Any) -> None:
        """Hand over a message where a wait has just said that one can be sent."""
        self._socket.send_pyobj(message)

    def tell(self, message: Any) -> None:
        """A last word, if the other end is still there to hear it; never waits."""
        with contextlib.suppress(zmq.Again):
            self._socket.send_pyobj(message, zmq.NOBLOCK)

    def receive(self) -> Any:
        """The next message."""
        self._wait(zmq.POLLIN, "no answer")
        return self._socket.recv_pyobj()

    def _wait(self, events: int, otherwise: str) -> int:
        self._poller.register(self._socket, events)
        ready = dict(self._poller.poll(self.deadline * 1000))
        if self._socket in ready:  # an answer that is already here counts, whatever happened since
            return int(ready[self._socket])
        if ready:
            raise CalledOff(f"the transfer on {self.handle} was called off")
        raise DeadlineExceeded(f"{otherwise} within {self.deadline:g} s on {self.handle}")

    def forget_file(self) -> None:
        """Remove the socket's file; safe to repeat, and does not cut off who is connected."""
        if path := socket_path(self.handle):
            with contextlib.suppress(FileNotFoundError):
                os.remove(path)


class Listener:
    """The receiver as the sender sees it: it is given messages, and confirms each, in their order.

    Raises (from both methods, besides what the channel raises):
        PeerFailed: it could not do what a message asked.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel, self._unconfirmed = channel, 0

    def give(self, message: Any) -> None:
        """Hand over a message, and do not wait for its confirmation."""
        while self._channel.heard():  # one that has failed leaves, and would never take another message
            self._hear()
        self._channel.post(message)
        self._unconfirmed += 1

    def wait(self, unconfirmed: int) -> None:
        """Until no more than so many messages lack their confirmation."""
        while self._unconfirmed > unconfirmed:
            self._hear()

    def _hear(self) -> None:
        answer: Answer = self._channel.receive()
        if answer.failed is not None:
            raise PeerFailed(f"the engine refused the weights: {answer.failed}")
        self._unconfirmed -= 1
