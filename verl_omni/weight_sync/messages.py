"""PURE: messages of a weight update and their encoding, of both transports.

MessagePack with checked types. Encoding costs a tenth of pickling, which matters because a bucket may hold only two
tensors. Decoding executes nothing, except for the handle of device memory, which torch pickles.
"""

import math
import struct
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import msgspec
import torch

from verl_omni.weight_sync.errors import IncompleteUpdate, PeerFailed

PREFIX = struct.Struct(">I")  # bytes of the message that follows
HANDSHAKE_BYTES = 1024  # maximum size of a message before both ends have authenticated
MESSAGE_BYTES = 64 << 20  # maximum size of later ones; they list tensors and do not contain them
BUCKET_BYTES = 64 << 30  # maximum size of a bucket, which may be one large tensor
# Bytes that must arrive within the deadline, however slow a peer is.
CHUNK_BYTES = 4 << 20

_NAMES = {value: str(value).removeprefix("torch.") for value in vars(torch).values() if isinstance(value, torch.dtype)}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}


class Entry(NamedTuple):
    """A tensor's position in the buffer, and the digest of its bytes."""

    shape: tuple[int, ...]
    dtype: str  # torch's name without `torch.`
    offset: int
    digest: int


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Base of all messages."""


M = TypeVar("M", bound=Message)


class BufferMessage(Message, frozen=True):
    """The buffer to read from now on: the name of a shared-memory segment, or a device IPC handle."""

    size: int
    segment: str | None = None
    device_handle: bytes | None = None


class BucketMessage(Message, frozen=True):
    """Tensors in the buffer, or whose bytes follow; in the last bucket only, `last` lists the names of the update."""

    entries: dict[str, Entry]
    last: list[str] | None = None


class AbortMessage(Message, frozen=True):
    """The sender failed."""

    reason: str


class ReplyMessage(Message, frozen=True):
    """The receiver's reply to one message."""

    failed: str | None = None


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


@dataclass(frozen=True, slots=True)
class StreamAddress:
    """Address at which the trainer listens for one update.

    Attributes:
        update: random id, so that the receiver of another update does not pass the handshake.
    """

    host: str
    port: int
    update: bytes


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(
    ChallengeMessage
    | ProofMessage
    | WelcomeMessage
    | WaitMessage
    | HeaderMessage
    | BufferMessage
    | BucketMessage
    | AbortMessage
    | ReplyMessage
)


def encode_message(message: Message) -> bytes:
    """Encode a message, with its size in front."""
    content = _encoder.encode(message)
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


def decode_message(content: bytes | bytearray, *kinds: type[M]) -> M:
    """Decode a message, without its prefix, that must be one of `kinds`.

    Raises:
        IncompleteUpdate: malformed, or another kind. PeerFailed: the trainer reports a failure instead.
    """
    try:
        message = _decoder.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:  # the latter for a text that is not UTF-8
        raise IncompleteUpdate(f"malformed message of a weight update: {error}") from error
    if isinstance(message, kinds):
        return message
    if isinstance(message, AbortMessage):
        raise PeerFailed(f"the trainer aborted the update: {message.reason}")
    raise IncompleteUpdate(f"unexpected message of a weight update: {type(message).__name__}")


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype in an `Entry`."""
    return _NAMES[dtype]


def parse_dtype(name: str) -> torch.dtype:
    """The dtype of a name.

    Raises:
        IncompleteUpdate: this version of torch has no such dtype.
    """
    try:
        return _DTYPES[name]
    except KeyError:
        raise IncompleteUpdate(f"this version of torch has no dtype {name!r}") from None


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
