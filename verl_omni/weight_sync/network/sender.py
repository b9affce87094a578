"""Sending end of a weight update over the network, in rank 0 of the trainer: one sender, many receivers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass

from torch import Tensor

from verl_omni.weight_sync.errors import (
    DeadlineExceeded,
    IncompleteUpdate,
    PeerDisconnected,
    WeightSyncError,
    error_text,
)
from verl_omni.weight_sync.messages import AbortMessage, BucketMessage, Message, ReplyMessage
from verl_omni.weight_sync.network.buckets import BucketFiller
from verl_omni.weight_sync.network.handshake import NONCE_BYTES, receiver_proof, same_proof, sender_proof
from verl_omni.weight_sync.network.messages import (
    CHUNK_BYTES,
    HANDSHAKE_BYTES,
    MESSAGE_BYTES,
    PREFIX,
    ChallengeMessage,
    HeaderMessage,
    M,
    ProofMessage,
    StreamAddress,
    WelcomeMessage,
    check_size,
    decode_as,
    encode_frame,
)

logger = logging.getLogger(__name__)
HANDSHAKE_SECONDS = 10.0


@dataclass(slots=True)
class _Peer:
    """A connection; its methods raise `DeadlineExceeded` and `PeerDisconnected`."""

    socket: socket.socket
    deadline: float

    async def send(self, message: Message) -> None:
        await self.write(memoryview(encode_frame(message)))

    async def write(self, content: memoryview) -> None:
        loop = asyncio.get_running_loop()
        while content:
            chunk, content = content[:CHUNK_BYTES], content[CHUNK_BYTES:]
            try:
                async with asyncio.timeout(self.deadline):
                    await loop.sock_sendall(self.socket, chunk)
            except TimeoutError as error:
                raise DeadlineExceeded(f"it took too little within {self.deadline:g} s") from error
            except OSError as error:
                raise PeerDisconnected(f"it is gone: {error}") from error

    async def receive(self, kind: type[M], limit: int = MESSAGE_BYTES) -> M:
        try:
            async with asyncio.timeout(self.deadline):
                size = check_size(await self._read(PREFIX.size), limit)
                content = await self._read(size)
        except TimeoutError as error:
            raise DeadlineExceeded(f"no answer within {self.deadline:g} s") from error
        except OSError as error:
            raise PeerDisconnected(f"it is gone: {error}") from error
        return decode_as(kind, content)

    async def _read(self, size: int) -> bytearray:
        content, loop = bytearray(size), asyncio.get_running_loop()
        left = memoryview(content)
        while left:
            count = await loop.sock_recv_into(self.socket, left)
            if count == 0:
                raise PeerDisconnected("it closed the connection without reporting a failure")
            left = left[count:]
        return content


class WeightStream:
    """Listens for the receivers of one update, and sends it to all of them at the same time.

    Args:
        host: IP address to listen on, on any free port.
        key: `handshake.token_key`.
        deadline: seconds for all receivers to connect, for each answer, and for each `CHUNK_BYTES` of tensors.
    """

    def __init__(self, host: str, key: bytes, deadline: float) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family, backlog=1024)
        self._listener.setblocking(False)
        self.address = StreamAddress(host, self._listener.getsockname()[1], secrets.token_bytes(16))
        self._key, self._deadline = key, deadline
        self._peers: dict[int, _Peer] = {}
        self._failed: dict[int, str] = {}

    def close(self) -> None:
        """Close all connections; safe to repeat."""
        self._listener.close()
        for peer in self._peers.values():
            peer.socket.close()

    async def send(
        self, weights: Iterator[tuple[str, Tensor]], header: HeaderMessage, receivers: int, bucket_bytes: int
    ) -> dict[int, str]:
        """Send an update to receivers 0 to `receivers` - 1. A receiver that fails does not stop the others.

        Args:
            weights: read in another thread, once the receivers are connected; not read to the end if all have failed.
            bucket_bytes: maximum size of a bucket, of which two are in memory, unless one tensor is larger.

        Returns:
            Why an update is not known to have taken effect, for each receiver that did not confirm it.

        Raises:
            Any error raised by iterating `weights`, after the receivers are told about it.
        """
        try:
            await self._accept(receivers)
            for number in set(range(receivers)) - self._peers.keys():
                self._failed[number] = error_text(DeadlineExceeded(f"it did not connect within {self._deadline:g} s"))
            await asyncio.gather(*(self._guarded(number, peer.send(header)) for number, peer in self._alive()))
            try:
                await self._send_buckets(BucketFiller(weights, bucket_bytes))
            except Exception as error:
                abort = AbortMessage(error_text(error))
                await asyncio.gather(*(self._guarded(number, peer.send(abort)) for number, peer in self._alive()))
                raise
            await asyncio.gather(*(self._guarded(number, _confirmed(peer)) for number, peer in self._alive()))
            return self._failed
        finally:
            self.close()

    async def _accept(self, receivers: int) -> None:
        """Accept connections until all receivers are here, or until the deadline. Strangers do not count."""
        complete, expected = asyncio.Event(), set(range(receivers))

        async def greet(connection: socket.socket) -> None:
            connection.setblocking(False)
            try:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                async with asyncio.timeout(HANDSHAKE_SECONDS):
                    number = await self._authenticate(connection, expected)
            except (WeightSyncError, TimeoutError, OSError) as error:
                connection.close()
                logger.warning("a connection for a weight update was refused: %s", error)
                return
            except asyncio.CancelledError:
                connection.close()
                raise
            self._peers[number] = _Peer(connection, self._deadline)
            if len(self._peers) == receivers:
                complete.set()

        async def listen() -> None:
            async with asyncio.TaskGroup() as greeting:
                while True:
                    connection, _ = await asyncio.get_running_loop().sock_accept(self._listener)
                    greeting.create_task(greet(connection))

        listening = asyncio.create_task(listen())
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._deadline):
                    await complete.wait()
        finally:
            listening.cancel()
            await asyncio.wait({listening})
            self._listener.close()

    async def _authenticate(self, connection: socket.socket, expected: set[int]) -> int:
        peer, challenge = _Peer(connection, HANDSHAKE_SECONDS), secrets.token_bytes(NONCE_BYTES)
        await peer.send(ChallengeMessage(challenge))
        answer = await peer.receive(ProofMessage, HANDSHAKE_BYTES)
        parts = (self._key, self.address.update, answer.receiver, challenge, answer.nonce)
        if not same_proof(receiver_proof(*parts), answer.proof):
            raise IncompleteUpdate("its proof does not fit this update and this cluster's token")
        if answer.receiver not in expected:
            raise IncompleteUpdate(f"receiver {answer.receiver} is not expected, or connected before")
        expected.remove(answer.receiver)
        await peer.send(WelcomeMessage(sender_proof(*parts)))
        return answer.receiver

    async def _send_buckets(self, filler: BucketFiller) -> None:
        filling = asyncio.create_task(asyncio.to_thread(filler.fill))
        try:
            while (bucket := await filling) is not None and self._alive():
                filling = asyncio.create_task(asyncio.to_thread(filler.fill))
                message, content = bucket
                raw = memoryview(content.numpy())
                sending = (self._guarded(number, _send_bucket(peer, message, raw)) for number, peer in self._alive())
                await asyncio.gather(*sending)
        finally:
            if not filling.done():
                await asyncio.wait({filling})  # its thread reads the weights, which the caller closes

    async def _guarded(self, number: int, sending: Awaitable[None]) -> None:
        try:
            await sending
        except WeightSyncError as error:
            self._failed[number] = error_text(error)
            self._peers[number].socket.close()

    def _alive(self) -> list[tuple[int, _Peer]]:
        return [(number, peer) for number, peer in self._peers.items() if number not in self._failed]


async def _send_bucket(peer: _Peer, message: BucketMessage, content: memoryview) -> None:
    try:
        await peer.send(message)
        await peer.write(content)
    except PeerDisconnected:
        with contextlib.suppress(PeerDisconnected, DeadlineExceeded, IncompleteUpdate):
            await _confirmed(peer)  # its last message says why it left
        raise


async def _confirmed(peer: _Peer) -> None:
    reply = await peer.receive(ReplyMessage)
    if reply.failed is not None:
        raise WeightSyncError(reply.failed)
