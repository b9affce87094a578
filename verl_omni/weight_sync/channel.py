"""The socket between the two ends of a transfer, with a deadline on every wait."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import time
from dataclasses import dataclass, field

from verl_omni.weight_sync.errors import CalledOff, DeadlineExceeded, IncompleteUpdate, PeerFailed, PeerGone
from verl_omni.weight_sync.messages import Answer, Message, decoded, encoded
from verl_omni.weight_sync.names import socket_path

HEADER = struct.Struct(">Q")  # bytes of the message that follows
LONGEST = 1 << 30  # bytes; a header that says more was none
RETRY_SECONDS = 0.002  # while the sender is not there: the receiver is told first
# The other end is done with half a buffer in less; to sleep and be woken costs as much as copying it, in a virtual
# machine above all.
SPIN_SECONDS = 0.0005


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
    """One end of a stream socket between two processes of a host. The owner listens; the other may come before it.

    A library's threads would be in the way here: while both ends copy, each has a processor, and there may be no third.

    Raises (from every method that waits):
        DeadlineExceeded: the other end was not there, or said nothing, for `deadline` seconds.
        PeerGone: the other end was there and left, as it does when its process is killed.
        CalledOff: `stop` was set.
    """

    handle: str
    deadline: float
    owner: bool
    stop: Stop | None = None
    _socket: socket.socket = field(init=False)
    _met: bool = field(default=False, init=False)

    def __enter__(self) -> Channel:
        path = socket_path(self.handle)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        if self.owner:
            self.forget_file()
            self._socket.bind(path)
            self._socket.listen(1)
        return self

    def __exit__(self, *error: object) -> None:
        self._socket.close()
        if self.owner:
            self.forget_file()

    def meet(self) -> None:
        """Wait until the other end is there: only then can it be told of a failure."""
        if self._met:
            return
        if self.owner:
            self._wait(select.POLLIN, "nobody listened")
            with self._socket as listening:
                self._socket, _ = listening.accept()
            self._socket.setblocking(False)
        else:
            latest = time.monotonic() + self.deadline
            # A sender that is not there yet has no file; that of a sender that was killed refuses.
            while self._socket.connect_ex(socket_path(self.handle)) != 0:
                if time.monotonic() > latest:
                    raise DeadlineExceeded(f"nobody was there within {self.deadline:g} s on {self.handle}")
                time.sleep(RETRY_SECONDS)
        self._met = True

    def heard(self) -> bool:
        """Whether the other end has said something, or left."""
        return self._socket.fileno() in self._ready(select.POLLIN, 0)

    def send(self, message: Message) -> bool:
        """Hand over a message; waits until the other end is there, and has room for it.

        Returns:
            Whether it is still there. What it said before it left can be received.
        """
        self.meet()
        left = memoryview(_framed(message))
        while left:
            try:
                left = left[self._socket.send(left) :]
            except BlockingIOError:
                self._wait(select.POLLOUT, "no room for a message")
            except ConnectionError:
                return False
        return True

    def tell(self, message: Message) -> None:
        """A last word, if the other end is still there to hear it; never waits."""
        with contextlib.suppress(OSError):
            self._socket.send(_framed(message))

    def receive(self) -> Message:
        """The next message.

        Raises:
            IncompleteUpdate: what came is no message of this protocol.
        """
        self.meet()
        (size,) = HEADER.unpack(self._exactly(HEADER.size))
        if size > LONGEST:
            raise IncompleteUpdate(f"what came on {self.handle} is no message of an update")
        return decoded(self._exactly(size))

    def _exactly(self, size: int) -> bytearray:
        found, place = bytearray(size), 0
        patient = time.perf_counter() + SPIN_SECONDS
        while place < size:
            try:
                taken = self._socket.recv_into(memoryview(found)[place:])
            except BlockingIOError:
                if time.perf_counter() > patient:
                    self._wait(select.POLLIN, "no answer")
                else:
                    os.sched_yield()
                continue
            except ConnectionError:
                taken = 0
            if taken == 0:
                raise PeerGone(f"the other end of {self.handle} left without a word")
            place += taken
        return found

    def _wait(self, events: int, otherwise: str) -> None:
        ready = self._ready(events, self.deadline)
        if self._socket.fileno() in ready:  # an answer that is already here counts, whatever happened since
            return
        if ready:
            raise CalledOff(f"the transfer on {self.handle} was called off")
        raise DeadlineExceeded(f"{otherwise} within {self.deadline:g} s on {self.handle}")

    def _ready(self, events: int, seconds: float) -> list[int]:
        poller = select.poll()
        poller.register(self._socket, events)
        if self.stop is not None:
            poller.register(self.stop.fileno(), select.POLLIN)
        return [descriptor for descriptor, _ in poller.poll(seconds * 1000)]

    def forget_file(self) -> None:
        """Remove the socket's file; safe to repeat, and does not cut off who is connected."""
        with contextlib.suppress(FileNotFoundError):
            os.remove(socket_path(self.handle))


def _framed(message: Message) -> bytes:
    content = encoded(message)
    return HEADER.pack(len(content)) + content


class Listener:
    """The receiver as the sender sees it: it is given messages, and confirms each, in their order.

    Raises (from both methods, besides what the channel raises):
        PeerFailed: it could not do what a message asked.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel, self._unconfirmed = channel, 0

    def give(self, message: Message) -> None:
        """Hand over a message, and do not wait for its confirmation."""
        while self._channel.heard():  # it may have failed
            self._hear()
        self._unconfirmed += 1
        if not self._channel.send(message):
            self.wait(0)  # its last word says why

    def wait(self, unconfirmed: int) -> None:
        """Until no more than so many messages lack their confirmation."""
        while self._unconfirmed > unconfirmed:
            self._hear()

    def _hear(self) -> None:
        answer = self._channel.receive()
        if not isinstance(answer, Answer):
            raise IncompleteUpdate(f"the engine sent {type(answer).__name__}, which is no answer")
        if answer.failed is not None:
            raise PeerFailed(f"the engine refused the weights: {answer.failed}")
        self._unconfirmed -= 1
