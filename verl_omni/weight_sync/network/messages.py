"""PURE: messages of a weight update over the network: MessagePack with checked types; decoding executes nothing."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from verl_omni.weight_sync.errors import IncompleteUpdate, PeerFailed
from verl_omni.weight_sync.messages import (
    AbortMessage,
    BucketMessage,
    Entry,
    Message,
    ReplyMessage,
    decode_message,
    encode_message,
    parse_dtype,
)

PREFIX = struct.Struct(">I")  # bytes of the message that follows
HANDSHAKE_BYTES = 1024  # maximum size of a message before both ends have authenticated
MESSAGE_BYTES = 64 << 20  # maximum size of later ones; they list tensors and do not contain them
BUCKET_BYTES = 64 << 30  # maximum size of a bucket, which may be one large tensor
# Bytes that must arrive within the deadline, however slow a peer is.
CHUNK_BYTES = 4 << 20

M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class StreamAddress:
    """Address at which the trainer listens for one update.

    Attributes:
        update: random id, so that the receiver of another update does not pass the handshake.
    """

    host: str
    port: int
    update: bytes


class ChallengeMessage(Message, frozen=True):
    """The trainer's first message."""

    nonce: bytes


class ProofMessage(Message, frozen=True):
    """The receiver's proof that it has the token, and its own nonce."""

    receiver: int
    nonce: bytes
    proof: bytes


class WelcomeMessage(Message, frozen=True):
    """The trainer's proof that it has the token."""

    proof: bytes


class HeaderMessage(Message, frozen=True):
    """What is sent: the version, and `PeftConfig.to_dict()` as JSON data for an adapter, None for all weights."""

    version: int
    peft_config: dict[str, Any] | None


class WaitMessage(Message, frozen=True):
    """The next message is late, because the trainer gathers weights or waits for another receiver."""


_decoder = msgspec.msgpack.Decoder(
    ChallengeMessage
    | ProofMessage
    | WelcomeMessage
    | WaitMessage
    | HeaderMessage
    | BucketMessage
    | AbortMessage
    | ReplyMessage
)


_WAIT = encode_message(WaitMessage())


def encode_frame(message: Message) -> bytes:
    """A message with its size in front."""
    content = encode_message(message)
    return PREFIX.pack(len(content)) + content


def check_size(prefix: bytes | bytearray, limit: int) -> int:
    """Size in bytes of the message that follows a prefix.

    Raises:
        IncompleteUpdate: it exceeds `limit`.
    """
    (size,) = PREFIX.unpack(prefix)
    if size > limit:
        raise IncompleteUpdate(f"malformed message of a weight update: {size} bytes, more than {limit}")
    return int(size)


def decode_as(kind: type[M], content: bytes | bytearray) -> M:
    """Decode a message of one kind.

    Raises:
        IncompleteUpdate: malformed, or another kind. PeerFailed: the other end reports a failure instead.
    """
    message = decode_message(content, _decoder)
    if isinstance(message, AbortMessage):
        raise PeerFailed(f"the trainer aborted the update: {message.reason}")
    if not isinstance(message, kind):
        raise IncompleteUpdate(f"unexpected message of a weight update: {type(message).__name__}")
    return message


def is_wait(content: bytes | bytearray) -> bool:
    """Whether this is a `WaitMessage`, after which the expected message is still to come."""
    return content == _WAIT


def bucket_size(entries: dict[str, Entry]) -> int:
    """Bytes of a bucket: up to the end of its last tensor.

    Raises:
        IncompleteUpdate: negative sizes, an unknown dtype, or more than `BUCKET_BYTES`.
    """
    size = 0
    for name, entry in entries.items():
        if entry.offset < 0 or any(length < 0 for length in entry.shape):
            raise IncompleteUpdate(f"malformed message of a weight update: sizes of {name}")
        size = max(size, entry.offset + math.prod(entry.shape) * parse_dtype(entry.dtype).itemsize)
    if size > BUCKET_BYTES:
        raise IncompleteUpdate(f"malformed message of a weight update: a bucket of {size} bytes")
    return size
