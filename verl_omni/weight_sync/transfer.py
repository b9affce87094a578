"""Tensors from one process to another on the same host: buckets through shared memory or device IPC.

Both ends have deadlines, and either tells the other when it fails. One socket serves one update;
the sender owns the buffer and the socket file, and removes both whatever happens. Besides the tensors
themselves, an update takes one buffer: of at most `bucket_bytes`, or of its largest tensor where that is larger.
The sender fills one half of it while the receiver reads the other (`packing.Packer`).

    sender                                   receiver
    begin  {buffer}                     ->   opens it, drops the one before
                                        <-   ok | failed {reason}
    bucket {tensors, last}              ->   copies or consumes the bucket
                                        <-   ok | failed {reason}
    abandon {reason}                    ->   raises PeerFailed

Each message is answered, in order; the sender waits for an answer only where it needs the memory again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from verl_omni.weight_sync.buffers import SEGMENT_PREFIX, Outgoing, opened, release, settle
from verl_omni.weight_sync.channel import Channel, Listener, Stop
from verl_omni.weight_sync.errors import DeadlineExceeded, IncompleteUpdate, PeerFailed, PeerGone, text
from verl_omni.weight_sync.messages import Abandon, Answer, Begin, BucketMessage, Entry, Message
from verl_omni.weight_sync.packing import ENOUGH, Bucket, Packer, unpacked

__all__ = [
    "SEGMENT_PREFIX",
    "UPDATE_DEADLINE_SECONDS",
    "Bucket",
    "BucketMessage",
    "Channel",
    "Entry",
    "Stop",
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
    stop: Stop | None = None,
) -> int:
    """Send all `weights` and wait until the receiver has confirmed each bucket. Returns the number of tensors.

    Args:
        weights: taken one at a time once the receiver is there, and not kept.
        bucket_bytes: size that the buffer may grow to; it grows further for a larger tensor. Shared memory stays far
            below it where tensors are small, because more of it would be slower.
        device: where the buffer lives for device IPC; None for shared memory.
        deadline: seconds for each answer.
        stop: set from elsewhere to call the transfer off.

    Raises:
        PeerFailed: the receiver failed. PeerGone: it was killed. DeadlineExceeded: it did not answer.
        CalledOff: `stop` was set.
        NoRoom: shared memory is full.
        whatever iterating `weights` raises, after telling the receiver.
    """
    with contextlib.closing(Outgoing(device)) as buffer, Channel(handle, deadline, True, stop) as channel:
        try:
            channel.meet()
            packer = Packer(buffer, Listener(channel), bucket_bytes, ENOUGH if device is None else bucket_bytes)
            for name, tensor in weights:
                packer.put(name, tensor)
            return len(packer.finish())
        except (PeerFailed, PeerGone, DeadlineExceeded):
            raise
        except BaseException as error:
            channel.tell(Abandon(text(error)))
            raise


def receive(consume: Callable[[Bucket], None], *, handle: str, device: torch.device, deadline: float) -> list[str]:
    """Take an update, bucket by bucket. Returns all names in the order they were sent.

    Args:
        consume: is given views into the buffer, valid during the call only.

    Raises:
        PeerFailed: the sender abandoned the update. PeerGone: it was killed. DeadlineExceeded: it went silent.
        IncompleteUpdate: a tensor's bytes are not those that were sent.
        whatever `consume` raises, after telling the sender.
    """
    with Channel(handle, deadline, owner=False) as channel:
        try:
            names = _take_buckets(channel, consume, device)
            release(device)
            # The last word only after the buffer is dropped: the sender frees it the moment it hears this.
            if not channel.send(Answer()):
                _next(channel)  # the sender left before
        except PeerFailed:
            raise
        except BaseException as error:
            channel.tell(Answer(failed=text(error)))
            if isinstance(error, (PeerGone, DeadlineExceeded)):
                channel.forget_file()  # a sender that was killed does not
            raise
        return names


def _take_buckets(channel: Channel, consume: Callable[[Bucket], None], device: torch.device) -> list[str]:
    buffer = torch.empty(0, dtype=torch.uint8)
    while True:
        match _next(channel):
            case Begin() as begin:
                buffer = opened(begin, device)
            case BucketMessage(entries=entries, last=last):
                consume(unpacked(buffer, entries, device))
                settle(device)
                if last is not None:
                    return last
            case other:
                raise IncompleteUpdate(f"the trainer sent {type(other).__name__}, which is no message of an update")
        channel.send(Answer())


def _next(channel: Channel) -> Message:
    message = channel.receive()
    if isinstance(message, Abandon):
        raise PeerFailed(f"the trainer abandoned the update: {message.reason}")
    return message
