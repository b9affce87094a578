"""Sending end of a weight update over TCP, in rank 0 of the trainer: one sender, many receivers."""

import asyncio
import contextlib
import logging
import secrets
import socket
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from verl_omni.weight_sync.buckets import BucketFiller
from verl_omni.weight_sync.errors import (
    DeadlineExceeded,
    IncompleteUpdate,
    PeerDisconnected,
    WeightSyncError,
    error_text,
)
from verl_omni.weight_sync.handshake import NONCE_BYTES, receiver_proof, same_proof, sender_proof
from verl_omni.weight_sync.messages import (
    CHUNK_BYTES,
    HANDSHAKE_BYTES,
    MESSAGE_BYTES,
    PREFIX,
    AbortMessage,
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
    check_size,
    decode_message,
    encode_message,
)

logger = logging.getLogger(__name__)
HANDSHAKE_SECONDS = 10.0
ACCEPT_AGAIN_SECONDS = 0.1
# Bytes a second. A receiver that is at least so fast may make the others wait; a slower one, for the deadline in a
# whole update. Half of the receivers are the measure: a large model over a network that is slow for all does not fail.
LEAST_RATE = 8 << 20
WAIT_SHARE = 0.25  # share of the deadline of both ends after which a waiting receiver is told to keep waiting


@dataclass(slots=True)
class _Peer:
    """A connection; its methods raise `DeadlineExceeded` and `PeerDisconnected`."""

    connection: socket.socket
    deadline: float
    sending: asyncio.Lock = field(default_factory=asyncio.Lock)
    complete: asyncio.Event = field(default_factory=asyncio.Event)  # nothing more will be sent
    delay: float = 0.0  # seconds that it made the others wait in this update, beyond what `LEAST_RATE` allows

    async def send(self, message: Message, contents: Iterable[memoryview] = ()) -> None:
        """Send a message, and the tensors of a bucket after it."""
        async with self.sending:
            for content in (memoryview(encode_message(message)), *contents):
                await self._write(content)
            if isinstance(message, BucketMessage) and message.last is not None:
                self.complete.set()

    async def keep_waiting(self) -> None:
        """Tell the receiver to wait, whenever it has got nothing for a while, until everything is sent."""
        while not self.complete.is_set():
            try:
                async with asyncio.timeout(self.deadline * WAIT_SHARE):
                    await self.complete.wait()
            except TimeoutError:
                if not self.sending.locked():
                    await self.send(WaitMessage())

    async def _write(self, content: memoryview) -> None:
        loop = asyncio.get_running_loop()
        while content:
            chunk = content[:CHUNK_BYTES]
            content = content[CHUNK_BYTES:]
            try:
                async with asyncio.timeout(self.deadline):
                    await loop.sock_sendall(self._connected(), chunk)
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
        return decode_message(content, kind)

    def _connected(self) -> socket.socket:
        if self.connection.fileno() < 0:  # another task found that it is gone
            raise PeerDisconnected("it is gone")
        return self.connection

    async def _read(self, size: int) -> bytearray:
        content = bytearray(size)
        loop = asyncio.get_running_loop()
        left = memoryview(content)
        while left:
            count = await loop.sock_recv_into(self._connected(), left)
            if count == 0:
                raise PeerDisconnected("it closed the connection without reporting a failure")
            left = left[count:]
        return content


class StreamSender:
    """Listens for the receivers of one update, and sends it to all of them at the same time.

    Args:
        host: IP address to listen on, on any free port.
        key: `handshake.token_key`.
        deadline: seconds for all receivers to connect, for each answer, for each `CHUNK_BYTES` of tensors, and for a
            receiver to make the others wait in the whole update, besides what `LEAST_RATE` allows.
    """

    def __init__(self, host: str, key: bytes, deadline: float) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family, backlog=1024)
        self._listener.setblocking(False)
        self.address = StreamAddress(host, self._listener.getsockname()[1], secrets.token_bytes(16))
        self._key = key
        self._deadline = deadline
        self._peers: dict[int, _Peer] = {}
        self._failed: dict[int, str] = {}
        self._waits: list[asyncio.Task[None]] = []

    def close(self) -> None:
        """Close all connections; safe to repeat."""
        self._listener.close()
        for peer in self._peers.values():
            peer.connection.close()

    async def send(
        self, weights: Iterator[tuple[str, Tensor]], header: HeaderMessage, receivers: int, bucket_bytes: int
    ) -> dict[int, str]:
        """Send an update to receivers 0 to `receivers` - 1. A receiver that fails does not stop the others.

        Args:
            weights: read in another thread, once the receivers are connected; not read to the end if all have failed.
            bucket_bytes: maximum size of a bucket, of which two are in memory, unless one tensor is larger; see
                `BucketFiller`.

        Returns:
            Why an update is not known to have taken effect, for each receiver that did not confirm it.

        Raises:
            Any error raised by iterating `weights`, after the receivers are told about it.
        """
        try:
            await self._accept(receivers)
            for number in set(range(receivers)) - self._peers.keys():
                self._failed[number] = error_text(DeadlineExceeded(f"it did not connect within {self._deadline:g} s"))
            await self._send_to_all(header)
            try:
                await self._send_buckets(BucketFiller(weights, bucket_bytes))
            except Exception as error:
                await self._send_to_all(AbortMessage(error_text(error)))
                raise
            await asyncio.gather(*(self._guarded(number, _confirmed(peer)) for number, peer in self._alive()))
            return self._failed
        finally:
            self.close()
            for wait in self._waits:
                wait.cancel()

    async def _accept(self, receivers: int) -> None:
        """Accept connections until all receivers are here, or until the deadline. Strangers do not count."""
        complete = asyncio.Event()
        expected = set(range(receivers))

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
            peer = self._peers[number] = _Peer(connection, self._deadline)
            self._waits.append(asyncio.create_task(self._guarded(number, _explained(peer, peer.keep_waiting()))))
            if len(self._peers) == receivers:
                complete.set()

        async def listen() -> None:
            async with asyncio.TaskGroup() as greeting:
                while True:
                    try:
                        connection, _ = await asyncio.get_running_loop().sock_accept(self._listener)
                    except OSError as error:  # it has ended, or strangers have taken all file descriptors
                        logger.warning("a connection for a weight update was not accepted: %s", error)
                        await asyncio.sleep(ACCEPT_AGAIN_SECONDS)
                        continue
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
        peer = _Peer(connection, HANDSHAKE_SECONDS)
        challenge = secrets.token_bytes(NONCE_BYTES)
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
                message, parts = bucket
                await self._send_bucket(message, [memoryview(part.numpy()) for part in parts])
        finally:
            if not filling.done():
                await asyncio.wait({filling})  # its thread reads the weights, which the caller closes

    async def _send_bucket(self, message: BucketMessage, contents: Sequence[memoryview]) -> None:
        """Send a bucket to all; one fails that makes half of them wait for longer than its deadline leaves."""
        clock = asyncio.get_running_loop().time
        alive = self._alive()
        waits: dict[int, asyncio.Timeout] = {}
        usual = sum(map(len, contents)) / LEAST_RATE
        half = (len(alive) + 1) // 2
        done = 0
        since = 0.0

        def latest(number: int) -> float:
            return since + usual + self._deadline - self._peers[number].delay

        async def limited(number: int, peer: _Peer) -> None:
            nonlocal done, since
            try:
                # Others may be done before this one starts: what fits into the buffer of a socket is sent at once.
                async with asyncio.timeout_at(latest(number) if done >= half else None) as waits[number]:
                    await peer.send(message, contents)
            except TimeoutError as error:
                raise DeadlineExceeded(
                    f"it made the other receivers wait for more than {self._deadline:g} s in this update"
                ) from error
            finally:
                del waits[number]
                done += 1
                if done == half:
                    since = clock()
                    for receiver, wait in waits.items():
                        wait.reschedule(latest(receiver))
                elif done > half:
                    peer.delay += max(0.0, clock() - since - usual)

        await asyncio.gather(
            *(self._guarded(number, _explained(peer, limited(number, peer))) for number, peer in alive)
        )

    async def _send_to_all(self, message: Message) -> None:
        await asyncio.gather(
            *(self._guarded(number, _explained(peer, peer.send(message))) for number, peer in self._alive())
        )

    async def _guarded(self, number: int, sending: Awaitable[None]) -> None:
        try:
            await sending
        except WeightSyncError as error:
            self._failed.setdefault(number, error_text(error))
            self._peers[number].connection.close()

    def _alive(self) -> list[tuple[int, _Peer]]:
        return [(number, peer) for number, peer in self._peers.items() if number not in self._failed]


async def _explained(peer: _Peer, sending: Awaitable[None]) -> None:
    try:
        await sending
    except PeerDisconnected:
        async with peer.sending:
            with contextlib.suppress(PeerDisconnected, DeadlineExceeded, IncompleteUpdate):
                await _confirmed(peer)  # its last message says why it left
        raise


async def _confirmed(peer: _Peer) -> None:
    reply = await peer.receive(ReplyMessage)
    if reply.failed is not None:
        raise WeightSyncError(reply.failed)
