"""Weight updates over real sockets on loopback: fan-out, failures of either end, authentication, malformed messages."""

import asyncio
import errno
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from verl_omni.weight_sync import buckets, handshake, messages
from verl_omni.weight_sync import tcp_sender as sending
from verl_omni.weight_sync.errors import DeadlineExceeded, IncompleteUpdate, PeerDisconnected, PeerFailed
from verl_omni.weight_sync.messages import BucketMessage, Entry, HeaderMessage, StreamAddress
from verl_omni.weight_sync.tcp_receiver import StreamReceiver
from verl_omni.weight_sync.tcp_sender import StreamSender

KEY = b"token"
HOST = "127.0.0.1"
BUCKET = 4096
SHORT = 1.0  # seconds; a deadline that a test waits for
FULL = HeaderMessage(3, None)
LORA = HeaderMessage(3, {"r": 4, "target_modules": ["to_q"], "lora_alpha": 8.0, "layers_pattern": None})
Weights = dict[str, torch.Tensor]


def make_weights() -> Weights:
    generator = torch.Generator().manual_seed(0)
    return {
        "a": torch.randn(64, 32, generator=generator),
        "b.transposed": torch.randn(8, 300, generator=generator).t(),
        "c": torch.randn(7, generator=generator).to(torch.bfloat16),
        "larger than a bucket": torch.randn(3000, generator=generator),
        "scalar": torch.tensor(2),
        "empty": torch.empty(0, 4),
    }


def take(
    address: StreamAddress, number: int, key: bytes = KEY, deadline: float = 10.0
) -> tuple[HeaderMessage, Weights]:
    """Receive everything and confirm."""
    receiver = StreamReceiver(address, number, key, deadline)
    receiver.connect()
    try:
        received = {name: tensor.clone() for name, tensor in receiver.weights()}
        receiver.confirm()
        return receiver.header, received
    finally:
        receiver.close()


def update(
    *receivers: Callable[[StreamAddress, int], Any],
    header: HeaderMessage = FULL,
    weights: Iterator[tuple[str, torch.Tensor]] | None = None,
    deadline: float = 10.0,
) -> tuple[dict[int, str], list[Any]]:
    """Send to receivers in threads. Returns which failed, and the result or the error of each."""

    async def send() -> dict[int, str]:
        stream = StreamSender(HOST, KEY, deadline)
        futures.extend(threads.submit(receiver, stream.address, number) for number, receiver in enumerate(receivers))
        return await stream.send(weights or iter(make_weights().items()), header, len(receivers), BUCKET)

    futures: list[Any] = []
    with ThreadPoolExecutor(len(receivers)) as threads:
        failed = asyncio.run(send())
        return failed, [future.exception(30) or future.result() for future in futures]


def check_taken(result: Any, header: HeaderMessage = FULL) -> None:
    received_header, weights = result
    assert received_header == header
    expected = make_weights()
    assert list(weights) == list(expected)
    for name, tensor in expected.items():
        assert weights[name].dtype == tensor.dtype and torch.equal(weights[name], tensor), name


@pytest.mark.parametrize("receivers", [1, 2, 4])
@pytest.mark.parametrize("header", [LORA, FULL], ids=["lora", "full"])
def test_every_receiver_gets_every_tensor_and_the_header(receivers: int, header: HeaderMessage) -> None:
    failed, results = update(*[take] * receivers, header=header)
    assert failed == {}
    for result in results:
        check_taken(result, header)


def test_a_receiver_that_dies_in_the_middle_does_not_stop_the_others() -> None:
    def dies(address: StreamAddress, number: int) -> None:
        receiver = StreamReceiver(address, number, KEY, 10.0)
        receiver.connect()
        next(receiver.weights())
        receiver.close()

    failed, (first, _, third) = update(take, dies, take)
    assert failed.keys() == {1} and "PeerDisconnected" in failed[1]
    check_taken(first)
    check_taken(third)


@pytest.mark.slow
def test_a_receiver_that_is_never_there_or_stops_reading_hits_its_deadline_and_the_others_finish() -> None:
    def hangs(address: StreamAddress, number: int) -> StreamReceiver:
        receiver = StreamReceiver(address, number, KEY, 10.0)
        receiver.connect()
        return receiver  # connected, and never reads or confirms

    large = {"w": torch.zeros(8 << 20)}  # 32 MiB: more than the buffers of two sockets
    failed, (first, hung, _) = update(
        take, hangs, lambda address, number: None, weights=iter(large.items()), deadline=SHORT
    )
    hung.close()
    assert failed.keys() == {1, 2}
    assert "too little within 1 s" in failed[1] and "did not connect" in failed[2]
    assert torch.equal(first[1]["w"], large["w"])


@pytest.mark.slow
@pytest.mark.parametrize("rest", ["never there", "stops reading"])
def test_a_receiver_waits_for_the_others_longer_than_the_deadline_that_both_ends_have(rest: str) -> None:
    held: list[StreamReceiver] = []

    def fails(address: StreamAddress, number: int) -> None:
        if rest == "stops reading":
            held.append(StreamReceiver(address, number, KEY, SHORT))
            held[0].connect()

    large = {name: torch.full((8 << 20,), float(number)) for number, name in enumerate("abc")}
    failed, (first, _) = update(partial(take, deadline=SHORT), fails, weights=iter(large.items()), deadline=SHORT)
    for receiver in held:
        receiver.close()
    assert failed.keys() == {1}
    assert all(torch.equal(first[1][name], tensor) for name, tensor in large.items())


@pytest.mark.slow
def test_receivers_wait_for_weights_that_take_longer_than_the_deadline() -> None:
    def slow() -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in make_weights().items():
            time.sleep(0.75 * SHORT)
            yield name, tensor

    failed, results = update(*[partial(take, deadline=SHORT)] * 2, weights=slow(), deadline=SHORT)
    assert failed == {}
    for result in results:
        check_taken(result)


def test_an_error_of_the_trainer_reaches_every_receiver_and_is_raised() -> None:
    def broken() -> Iterator[tuple[str, torch.Tensor]]:
        yield from make_weights().items()
        raise ZeroDivisionError("a broken layer")

    seen: list[BaseException] = []

    def watches(address: StreamAddress, number: int) -> None:
        with pytest.raises(PeerFailed, match="a broken layer") as caught:
            take(address, number)
        seen.append(caught.value)

    with pytest.raises(ZeroDivisionError, match="a broken layer"):
        update(watches, watches, weights=broken())
    assert len(seen) == 2


def test_a_name_that_is_sent_twice_is_refused() -> None:
    twice = [("a", torch.zeros(1)), ("a", torch.zeros(1))]
    with pytest.raises(IncompleteUpdate, match="a was sent twice"):
        update(lambda address, number: None, weights=iter(twice), deadline=0.1)


# --- authentication ---------------------------------------------------------------------------------------


def test_a_receiver_without_the_token_or_of_another_update_gets_nothing_and_costs_the_others_nothing() -> None:
    def without_token(address: StreamAddress, number: int) -> Any:
        return take(address, number, key=b"another")

    def late(address: StreamAddress, number: int) -> Any:
        return take(StreamAddress(address.host, address.port, b"the update before"), number)

    failed, (first, wrong, late_receiver) = update(take, without_token, late, deadline=0.4)
    assert failed.keys() == {1, 2}
    assert isinstance(wrong, PeerDisconnected) and isinstance(late_receiver, PeerDisconnected)
    check_taken(first)


def test_a_trainer_without_the_token_is_refused_before_anything_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "same_proof", lambda expected, found: True)  # an impostor accepts every proof
    failed, (refused,) = update(lambda address, number: take(address, number, key=b"another"))
    assert isinstance(refused, IncompleteUpdate) and "does not have this cluster's token" in str(refused)
    assert failed.keys() == {0}


def test_two_receivers_with_one_number_are_not_both_served() -> None:
    failed, results = update(take, lambda address, number: take(address, 0), deadline=0.4)
    assert failed.keys() == {1}
    assert sum(isinstance(result, PeerDisconnected) for result in results) == 1


def test_a_stranger_that_sends_garbage_does_not_disturb_the_update() -> None:
    def with_a_stranger(address: StreamAddress, number: int) -> Any:
        for garbage in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\5hello", b"\xff" * 4000):
            with socket.create_connection((address.host, address.port)) as stranger:
                stranger.sendall(garbage)
        return take(address, number)

    failed, (result,) = update(with_a_stranger)
    assert failed == {}
    check_taken(result)


class Refusing(socket.socket):
    """A listener that has no file descriptor for the first connections."""

    left = 2

    def accept(self) -> Any:
        if self.left:
            self.left -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


async def test_a_receiver_is_accepted_when_file_descriptors_are_free_again() -> None:
    stream = StreamSender(HOST, KEY, 10.0)
    stream._listener = Refusing(fileno=stream._listener.detach())
    stream._listener.setblocking(False)
    with ThreadPoolExecutor(1) as threads:
        taken = threads.submit(take, stream.address, 0)
        assert await stream.send(iter(make_weights().items()), FULL, 1, BUCKET) == {}
        check_taken(taken.result(30))


def test_only_loopback_needs_no_token() -> None:
    assert handshake.token_key(None, "127.0.0.1") == handshake.token_key(None, "::1") == b""
    assert handshake.token_key("secret", "10.0.0.3") == b"secret"
    for token in (None, ""):
        with pytest.raises(ValueError, match="RAY_AUTH_TOKEN is not set; start Ray with RAY_AUTH_MODE=token"):
            handshake.token_key(token, "10.0.0.3")


@given(st.binary(), st.binary(max_size=64), st.integers(0, 99), st.binary(max_size=64), st.binary(max_size=64))
def test_proofs_depend_on_every_part_and_on_the_end(
    key: bytes, update_id: bytes, number: int, challenge: bytes, nonce: bytes
) -> None:
    parts = (key, update_id, number, challenge, nonce)
    proof = handshake.receiver_proof(*parts)
    assert handshake.same_proof(proof, handshake.receiver_proof(*parts))
    others = [
        handshake.sender_proof(*parts),
        handshake.receiver_proof(key + b"x", *parts[1:]),
        handshake.receiver_proof(key, update_id + challenge + b"x", number, challenge, nonce),
        handshake.receiver_proof(key, update_id, number + 1, challenge, nonce),
        handshake.receiver_proof(key, update_id, number, challenge + b"x", nonce),
        handshake.receiver_proof(key, update_id, number, challenge, nonce + b"x"),
    ]
    assert proof not in others


# --- malformed content ------------------------------------------------------------------------------------


class Corrupting(buckets.BucketFiller):
    """Changes a byte of the first tensor after its digest was computed."""

    def fill(self) -> tuple[BucketMessage, list[torch.Tensor]] | None:
        bucket = super().fill()
        if bucket is not None and "a" in bucket[0].entries:
            bucket[1][0][5] ^= 1
        return bucket


def test_a_changed_byte_is_found_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "BucketFiller", Corrupting)

    def takes(address: StreamAddress, number: int) -> None:
        receiver = StreamReceiver(address, number, KEY, 10.0)
        receiver.connect()
        try:
            list(receiver.weights())
        except IncompleteUpdate as error:
            receiver.refuse(str(error))
        finally:
            receiver.close()

    failed, _ = update(takes)
    assert "digest mismatch: the received bytes of a are not those that were sent" in failed[0]


class Forgetting(buckets.BucketFiller):
    """Lists a tensor that it never sends."""

    def fill(self) -> tuple[BucketMessage, list[torch.Tensor]] | None:
        bucket = super().fill()
        if bucket is None or bucket[0].last is None:
            return bucket
        return BucketMessage(bucket[0].entries, [*bucket[0].last, "forgotten"]), bucket[1]


def test_a_missing_tensor_is_found_before_the_last_tensors_reach_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "BucketFiller", Forgetting)
    failed, (error,) = update(take)
    assert failed.keys() == {0}
    assert isinstance(error, IncompleteUpdate) and "missing: forgotten" in str(error)


@pytest.mark.parametrize(
    "entry",
    [
        Entry((4,), "float32", -16, 0),
        Entry((-1,), "float32", 0, 0),
        Entry((1 << 50,), "float32", 0, 0),
        Entry((1,), "float33", 0, 0),
    ],
)
def test_impossible_sizes_are_refused_before_memory_is_allocated(entry: Entry) -> None:
    with pytest.raises(IncompleteUpdate):
        messages.bucket_size({"w": entry})


def test_a_message_larger_than_allowed_is_refused() -> None:
    with pytest.raises(IncompleteUpdate, match="1025 bytes, more than 1024"):
        messages.check_size(messages.PREFIX.pack(1025), messages.HANDSHAKE_BYTES)


def test_a_trainer_that_is_silent_or_gone_is_named() -> None:
    with socket.create_server((HOST, 0)) as silent:
        address = StreamAddress(HOST, silent.getsockname()[1], b"")
        with pytest.raises(DeadlineExceeded, match="sent too little within"):
            StreamReceiver(address, 0, KEY, 0.05).connect()
    with pytest.raises(PeerDisconnected, match="is not there"):
        StreamReceiver(address, 0, KEY, 1.0).connect()
