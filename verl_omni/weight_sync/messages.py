"""PURE: messages of a weight transfer and their encoding.

MessagePack with checked types. Encoding costs a tenth of pickling, which matters because a bucket may hold only two
tensors. Decoding executes nothing, except for the handle of device memory, which torch pickles.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import torch

from verl_omni.weight_sync.errors import IncompleteUpdate

_NAMES = {each: str(each).removeprefix("torch.") for each in vars(torch).values() if isinstance(each, torch.dtype)}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}


class Entry(NamedTuple):
    """A tensor's position in the buffer, and the digest of its bytes."""

    shape: tuple[int, ...]
    dtype: str  # torch's name without `torch.`
    offset: int
    digest: int


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Base of all messages."""


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


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(BufferMessage | BucketMessage | AbortMessage | ReplyMessage)


def encode_message(message: Message) -> bytes:
    """Encode a message."""
    return _encoder.encode(message)


def decode_message(content: bytes | bytearray, decoder: msgspec.msgpack.Decoder[Any] = _decoder) -> Message:
    """Decode a message.

    Args:
        decoder: decoder of the expected messages; default: messages of a transfer on one machine.

    Raises:
        IncompleteUpdate: malformed message.
    """
    try:
        message: Message = decoder.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:  # the latter for a text that is not UTF-8
        raise IncompleteUpdate(f"malformed message of a weight update: {error}") from error
    return message


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
