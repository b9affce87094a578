"""Transfer of tensors between two processes of a machine, in buckets through shared memory or device IPC.

One socket serves one update. The sender owns the buffer and the socket file and removes both in every case. Besides the
tensors themselves, an update needs one buffer of at most `bucket_bytes`, or of its largest tensor if that is larger.
Each message gets a reply, in order; the sender waits for a reply only before it reuses the memory. The messages are in
the room's docstring.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from verl_omni.weight_sync.buckets import SHARED_MEMORY_BYTES, Bucket, Packer, unpack
from verl_omni.weight_sync.buffers import SendBuffer, open_buffer, release_ipc_memory, synchronize
from verl_omni.weight_sync.errors import (
    DeadlineExceeded,
    IncompleteUpdate,
    PeerDisconnected,
    PeerFailed,
    TransferCancelled,
    error_text,
)
from verl_omni.weight_sync.messages import (
    MESSAGE_BYTES,
    PREFIX,
    AbortMessage,
    BucketMessage,
    BufferMessage,
    M,
    Message,
    ReplyMessage,
    check_size,
    decode_message,
    encode_message,
)
from verl_omni.weight_sync.names import socket_path

UPDATE_DEADLINE_SECONDS = 120.0  # for each reply of the other end
CREDENTIALS = struct.Struct("3i")  # process, user and group of a socket's other end
RETRY_SECONDS = 0.002  # between attempts to connect: the receiver starts before the sender
# The other end usually finishes half a buffer in less time; sleeping and waking up costs as much as copying that half,
# especially in a virtual machine.
SPIN_SECONDS = 0.0005


def send(
    weights: Iterable[tuple[str, Tensor]],
    *,
    handle: str,
    bucket_bytes: int,
    device: torch.device | None,
    deadline: float,
    stop: StopSignal | None = None,
) -> int:
    """Send all `weights` and wait until the receiver has confirmed each bucket. Returns the number of tensors.

    Args:
        weights: read one at a time, once the receiver is connected, and not kept.
        bucket_bytes: maximum size of the buffer, unless one tensor is larger. In shared memory the buffer stays far
            smaller than that as long as the tensors are small, because a larger one is slower.
        device: location of the buffer for device IPC; None for shared memory.
        deadline: seconds for each reply.
        stop: cancels the transfer from another thread.

    Raises:
        PeerFailed: the receiver failed. PeerDisconnected: it was killed. DeadlineExceeded: it did not reply.
        TransferCancelled: `stop` was set.
        SharedMemoryFull: shared memory is full.
        Any error raised by iterating `weights`, after the receiver is told about it.
    """
    with contextlib.closing(SendBuffer(device)) as buffer, Channel(handle, deadline, True, stop) as channel:
        try:
            channel.connect()
            preferred = SHARED_MEMORY_BYTES if device is None else bucket_bytes
            packer = Packer(buffer, ReceiverProxy(channel), bucket_bytes, preferred)
            for name, tensor in weights:
                packer.add(name, tensor)
            return len(packer.finish())
        except (PeerFailed, PeerDisconnected, DeadlineExceeded):
            raise
        except BaseException as error:
            channel.try_send(AbortMessage(error_text(error)))
            raise


def receive(consume: Callable[[Bucket], None], *, handle: str, device: torch.device, deadline: float) -> list[str]:
    """Receive an update, bucket by bucket. Returns all names in the order in which they were sent.

    Args:
        consume: gets views into the buffer, which are valid during the call only.

    Raises:
        PeerFailed: the sender failed. PeerDisconnected: it was killed. DeadlineExceeded: it sent nothing.
        IncompleteUpdate: the bytes of a tensor are not those that were sent.
        Any error raised by `consume`, after the sender is told about it.
    """
    with Channel(handle, deadline, owner=False) as channel:
        try:
            names = _receive_buckets(channel, consume, device)
            release_ipc_memory(device)
            # The last reply is sent after the buffer is dropped, because the sender then frees the buffer.
            if not channel.send(ReplyMessage()):
                channel.receive(BufferMessage)  # raises: the sender left before this reply
        except PeerFailed:
            raise
        except BaseException as error:
            channel.try_send(ReplyMessage(failed=error_text(error)))
            if isinstance(error, (PeerDisconnected, DeadlineExceeded)):
                channel.remove_socket_file()  # a killed sender does not remove it
            raise
        return names


def _receive_buckets(channel: Channel, consume: Callable[[Bucket], None], device: torch.device) -> list[str]:
    buffer = torch.empty(0, dtype=torch.uint8)
    while True:
        message = channel.receive(BufferMessage, BucketMessage)
        if isinstance(message, BufferMessage):
            buffer = open_buffer(message, device)
        elif isinstance(message, BucketMessage):
            consume(unpack(buffer, message.entries, device))
            synchronize(device)
            if message.last is not None:
                return message.last
        channel.send(ReplyMessage())


class StopSignal:
    """Cancels a transfer from another thread: every wait of the `Channel` that has it ends at once."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()

    def __enter__(self) -> StopSignal:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._read)
        os.close(self._write)

    def fileno(self) -> int:
        return self._read

    def set(self) -> None:
        """Cancel the transfer; safe to repeat."""
        os.write(self._write, b".")


@dataclass
class Channel:
    """One end of a stream socket between two processes of a machine. The owner listens; the other may start first.

    A plain socket, because the threads of a messaging library would compete with the two copying ends for the cores.

    Raises (from every method that waits):
        DeadlineExceeded: the other end did not connect, or sent nothing, for `deadline` seconds.
        PeerDisconnected: the other end was connected and left, for example because its process was killed.
        TransferCancelled: `stop` was set.
    """

    handle: str
    deadline: float
    owner: bool
    stop: StopSignal | None = None
    _socket: socket.socket = field(init=False)
    _connected: bool = field(default=False, init=False)

    def __enter__(self) -> Channel:
        path = socket_path(self.handle)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        if self.owner:
            self.remove_socket_file()
            self._socket.bind(path)
            self._socket.listen(1)
        return self

    def __exit__(self, *error: object) -> None:
        self._socket.close()
        if self.owner:
            self.remove_socket_file()

    def connect(self) -> None:
        """Wait until the other end is connected: only then can it be told about a failure.

        Raises:
            IncompleteUpdate: the other end is a process of another user.
        """
        if self._connected:
            return
        if self.owner:
            self._wait(select.POLLIN, "no receiver connected")
            with self._socket as listening:
                self._socket, _ = listening.accept()
            self._socket.setblocking(False)
        else:
            latest = time.monotonic() + self.deadline
            # Before the sender starts there is no socket file; the file of a killed sender refuses connections.
            while self._socket.connect_ex(socket_path(self.handle)) != 0:
                if time.monotonic() > latest:
                    raise DeadlineExceeded(f"no sender within {self.deadline:g} s on {self.handle}")
                time.sleep(RETRY_SECONDS)
        self._check_user()
        self._connected = True

    def _check_user(self) -> None:
        """The other end is of this user: anyone may put a socket into /tmp, and a handle of device memory is unpickled.

        Raises:
            IncompleteUpdate: it is of another user.
        """
        credentials = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
        _, user, _ = CREDENTIALS.unpack(credentials)
        if user != os.geteuid():
            raise IncompleteUpdate(
                f"the other end of {self.handle} is a process of user id {user}, and this one is of {os.geteuid()}"
            )

    def has_message(self) -> bool:
        """Whether the other end has sent something, or disconnected."""
        return self._socket.fileno() in self._poll(select.POLLIN, 0)

    def send(self, message: Message) -> bool:
        """Send a message; wait until the other end is connected and its buffer has room.

        Returns:
            Whether the other end is still connected. What it sent before it left can still be received.
        """
        self.connect()
        left = memoryview(encode_message(message))
        while left:
            try:
                left = left[self._socket.send(left) :]
            except BlockingIOError:
                self._wait(select.POLLOUT, "no room for a message")
            except ConnectionError:
                return False
        return True

    def try_send(self, message: Message) -> None:
        """Send a final message if the other end is still connected; never wait."""
        with contextlib.suppress(OSError):
            self._socket.send(encode_message(message))

    def receive(self, *kinds: type[M]) -> M:
        """Receive the next message, which must be one of `kinds`.

        Raises:
            IncompleteUpdate: malformed, or another kind. PeerFailed: the sender reports a failure instead.
        """
        self.connect()
        size = check_size(self._receive_bytes(PREFIX.size), MESSAGE_BYTES)
        return decode_message(self._receive_bytes(size), *kinds)

    def _receive_bytes(self, size: int) -> bytearray:
        content = bytearray(size)
        position = 0
        spin_until = time.perf_counter() + SPIN_SECONDS
        while position < size:
            try:
                count = self._socket.recv_into(memoryview(content)[position:])
            except BlockingIOError:
                if time.perf_counter() > spin_until:
                    self._wait(select.POLLIN, "no reply")
                else:
                    os.sched_yield()
                continue
            except ConnectionError:
                count = 0
            if count == 0:
                raise PeerDisconnected(f"the other end of {self.handle} disconnected without reporting a failure")
            position += count
        return content

    def _wait(self, events: int, failure: str) -> None:
        ready = self._poll(events, self.deadline)
        if self._socket.fileno() in ready:  # a reply that has arrived counts, whatever happened since
            return
        if ready:
            raise TransferCancelled(f"the transfer on {self.handle} was cancelled")
        raise DeadlineExceeded(f"{failure} within {self.deadline:g} s on {self.handle}")

    def _poll(self, events: int, seconds: float) -> list[int]:
        poller = select.poll()
        poller.register(self._socket, events)
        if self.stop is not None:
            poller.register(self.stop.fileno(), select.POLLIN)
        return [descriptor for descriptor, _ in poller.poll(seconds * 1000)]

    def remove_socket_file(self) -> None:
        """Remove the socket's file; safe to repeat, and existing connections stay open."""
        with contextlib.suppress(FileNotFoundError):
            os.remove(socket_path(self.handle))


class ReceiverProxy:
    """The sender's view of the receiver, which replies to each message in order.

    Raises (from both methods, besides the errors of the channel):
        PeerFailed: the receiver reported a failure.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._pending = 0

    def send(self, message: Message) -> None:
        """Send a message without waiting for its reply."""
        while self._channel.has_message():  # it may have failed
            self._receive_reply()
        self._pending += 1
        if not self._channel.send(message):
            self.wait_for_replies(0)  # its last message says why it left

    def wait_for_replies(self, pending: int) -> None:
        """Wait until at most `pending` messages have no reply yet."""
        while self._pending > pending:
            self._receive_reply()

    def _receive_reply(self) -> None:
        reply = self._channel.receive(ReplyMessage)
        if reply.failed is not None:
            raise PeerFailed(f"the engine's worker refused the weights: {reply.failed}")
        self._pending -= 1
