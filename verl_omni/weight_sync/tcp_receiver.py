"""Receiving end of a weight update over TCP, in the Ray worker of a standalone replica."""

import contextlib
import secrets
import socket
import time
from collections.abc import Iterator

import torch
from torch import Tensor

from verl_omni.weight_sync.buckets import unpack
from verl_omni.weight_sync.checks import check_names
from verl_omni.weight_sync.errors import DeadlineExceeded, IncompleteUpdate, PeerDisconnected
from verl_omni.weight_sync.handshake import NONCE_BYTES, receiver_proof, same_proof, sender_proof
from verl_omni.weight_sync.messages import (
    CHUNK_BYTES,
    HANDSHAKE_BYTES,
    MESSAGE_BYTES,
    PREFIX,
    BucketMessage,
    ChallengeMessage,
    HeaderMessage,
    M,
    Message,
    ProofMessage,
    ReplyMessage,
    StreamAddress,
    WaitMessage,
    WelcomeMessage,
    bucket_size,
    check_size,
    decode_message,
    encode_message,
)


class StreamReceiver:
    """A connection to the trainer for one update; every method blocks its thread.

    Args:
        receiver: number of this receiver, from 0.
        key: `handshake.token_key`.
        deadline: seconds for each message and for each `CHUNK_BYTES` of tensors.

    Raises (from every method that waits):
        DeadlineExceeded: the trainer did not answer in time. PeerDisconnected: it is gone or refused this receiver.
        PeerFailed: it reported a failure. IncompleteUpdate: malformed message, or a trainer without the token.
    """

    header: HeaderMessage

    def __init__(self, address: StreamAddress, receiver: int, key: bytes, deadline: float) -> None:
        self._address = address
        self._receiver = receiver
        self._key = key
        self._deadline = deadline

    def connect(self) -> None:
        """Connect, authenticate, and read the `header`."""
        where = (self._address.host, self._address.port)
        try:
            self._socket = socket.create_connection(where, timeout=self._deadline)
        except TimeoutError as error:
            raise DeadlineExceeded(f"the trainer on {where} did not answer within {self._deadline:g} s") from error
        except OSError as error:
            raise PeerDisconnected(f"the trainer on {where} is not there: {error}") from error
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._authenticate()
            self.header = self._receive(HeaderMessage)
        except BaseException:
            self._socket.close()
            raise

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _authenticate(self) -> None:
        challenge = self._receive(ChallengeMessage, HANDSHAKE_BYTES).nonce
        nonce = secrets.token_bytes(NONCE_BYTES)
        parts = (self._key, self._address.update, self._receiver, challenge, nonce)
        self._send(ProofMessage(self._receiver, nonce, receiver_proof(*parts)))
        if not same_proof(sender_proof(*parts), self._receive(WelcomeMessage, HANDSHAKE_BYTES).proof):
            raise IncompleteUpdate("the sender of a weight update does not have this cluster's token")

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """(name, tensor in CPU memory), each valid until the next one.

        Raises:
            IncompleteUpdate: digest, names or sizes are not those that the trainer sent.
        """
        names: set[str] = set()
        buffer = torch.empty(0, dtype=torch.uint8)
        while True:
            bucket = self._receive(BucketMessage)
            size = bucket_size(bucket.entries)
            if buffer.numel() < size:
                buffer = torch.empty(size, dtype=torch.uint8)
            self._fill(memoryview(buffer.numpy())[:size])
            if names & bucket.entries.keys():
                raise IncompleteUpdate("the name of a tensor arrived twice")
            names |= bucket.entries.keys()
            if bucket.last is not None:
                check_names(bucket.last, names)  # before the last tensors reach an engine
            yield from unpack(buffer[:size], bucket.entries, torch.device("cpu"))
            if bucket.last is not None:
                return

    def confirm(self) -> None:
        """Tell the trainer that the engine has taken all tensors."""
        self._send(ReplyMessage())

    def refuse(self, reason: str) -> None:
        """Tell the trainer why not, if it is still there."""
        with contextlib.suppress(PeerDisconnected, DeadlineExceeded):
            self._send(ReplyMessage(failed=reason))

    def _send(self, message: Message) -> None:
        self._socket.settimeout(self._deadline)
        try:
            self._socket.sendall(encode_message(message))
        except TimeoutError as error:
            raise DeadlineExceeded(f"the trainer read nothing for {self._deadline:g} s") from error
        except OSError as error:
            raise PeerDisconnected(f"the trainer is gone: {error}") from error

    def _receive(self, kind: type[M], limit: int = MESSAGE_BYTES) -> M:
        while True:
            prefix = bytearray(PREFIX.size)
            self._fill(memoryview(prefix))
            content = bytearray(check_size(prefix, limit))
            self._fill(memoryview(content))
            message = decode_message(content, kind, WaitMessage)
            if isinstance(message, kind):
                return message

    def _fill(self, target: memoryview) -> None:
        while target:
            chunk = target[:CHUNK_BYTES]
            target = target[CHUNK_BYTES:]
            latest = time.monotonic() + self._deadline
            while chunk:
                self._socket.settimeout(max(latest - time.monotonic(), 1e-3))
                try:
                    count = self._socket.recv_into(chunk)
                except TimeoutError as error:
                    raise DeadlineExceeded(f"the trainer sent too little within {self._deadline:g} s") from error
                except OSError as error:
                    raise PeerDisconnected(f"the trainer is gone: {error}") from error
                if count == 0:
                    raise PeerDisconnected("the trainer closed the connection without reporting a failure")
                chunk = chunk[count:]
