"""Transfer of tensors between two processes of a machine, in buckets through shared memory or device IPC.

Both ends have deadlines, and each reports its failure to the other. One socket serves one update. The sender owns the
buffer and the socket file and removes both in every case. Besides the tensors themselves, an update needs one buffer of
at most `bucket_bytes`, or of its largest tensor if that is larger. The sender fills one half of the buffer while the
receiver reads the other (`packing.Packer`).

    sender                                   receiver
    buffer {segment or handle}          ->   opens it, drops the previous one
                                        <-   ok | failed {reason}
    bucket {tensors, last}              ->   copies or consumes the bucket
                                        <-   ok | failed {reason}
    abort {reason}                      ->   raises PeerFailed

Each message gets a reply, in order; the sender waits for a reply only before it reuses the memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from verl_omni.weight_sync.buffers import SEGMENT_PREFIX, SendBuffer, open_buffer, release_ipc_memory, synchronize
from verl_omni.weight_sync.channel import Channel, ReceiverProxy, StopSignal
from verl_omni.weight_sync.errors import (
    DeadlineExceeded,
    IncompleteUpdate,
    PeerDisconnected,
    PeerFailed,
    error_text,
)
from verl_omni.weight_sync.messages import AbortMessage, BucketMessage, BufferMessage, Entry, Message, ReplyMessage
from verl_omni.weight_sync.packing import SHARED_MEMORY_BYTES, Bucket, Packer, unpack

__all__ = [
    "SEGMENT_PREFIX",
    "UPDATE_DEADLINE_SECONDS",
    "Bucket",
    "BucketMessage",
    "Channel",
    "Entry",
    "StopSignal",
    "receive",
    "send",
]

UPDATE_DEADLINE_SECONDS = 120.0  # for each reply of the other end


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
                _receive_message(channel)  # raises: the sender left before this reply
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
        match _receive_message(channel):
            case BufferMessage() as message:
                buffer = open_buffer(message, device)
            case BucketMessage(entries=entries, last=last):
                consume(unpack(buffer, entries, device))
                synchronize(device)
                if last is not None:
                    return last
            case other:
                raise IncompleteUpdate(f"unexpected message of the trainer: {type(other).__name__}")
        channel.send(ReplyMessage())


def _receive_message(channel: Channel) -> Message:
    message = channel.receive()
    if isinstance(message, AbortMessage):
        raise PeerFailed(f"the trainer aborted the update: {message.reason}")
    return message
