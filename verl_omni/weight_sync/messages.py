"""PURE: the words of a transfer, and their bytes.

MessagePack with types that are checked, because it costs a tenth of pickling: a bucket may hold two tensors only, and
then the words about them must take less than copying them. And nothing that a message says is run, but for the handle
of device memory, which torch pickles.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import torch

from verl_omni.weight_sync.errors import IncompleteUpdate

_NAMES = {each: str(each).removeprefix("torch.") for each in vars(torch).values() if isinstance(each, torch.dtype)}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}


class Entry(NamedTuple):
    """A tensor's place in the buffer, and the digest of its bytes there."""

    shape: tuple[int, ...]
    dtype: str  # as torch calls it, without `torch.`
    offset: int
    digest: int


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """One of those below."""


class Begin(Message, frozen=True):
    """A buffer to read from now on: the name of a shared-memory segment, or a device IPC handle."""

    size: int
    segment: str | None = None
    device_handle: bytes | None = None


class BucketMessage(Message, frozen=True):
    """Some tensors are in the buffer; `last` carries the names of the whole update."""

    entries: dict[str, Entry]
    last: list[str] | None = None


class Abandon(Message, frozen=True):
    """The sender failed."""

    reason: str


class Answer(Message, frozen=True):
    """The receiver's word on one message."""

    failed: str | None = None


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Begin | BucketMessage | Abandon | Answer)


def encoded(message: Message) -> bytes:
    """A message's bytes."""
    return _encoder.encode(message)


def decoded(content: bytes | bytearray) -> Message:
    """The message that bytes are.

    Raises:
        IncompleteUpdate: they are none.
    """
    try:
        message: Message = _decoder.decode(content)
    except msgspec.DecodeError as error:
        raise IncompleteUpdate(f"what came is no message of an update: {error}") from error
    return message


def name_of(dtype: torch.dtype) -> str:
    """What an `Entry` calls it."""
    return _NAMES[dtype]


def dtype_of(name: str) -> torch.dtype:
    """The reverse.

    Raises:
        IncompleteUpdate: this torch knows none of that name.
    """
    try:
        return _DTYPES[name]
    except KeyError:
        raise IncompleteUpdate(f"this torch has no {name!r}") from None
