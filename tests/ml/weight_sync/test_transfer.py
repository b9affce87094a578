"""Weight transfer over real sockets and shared memory, with failures of either end; no file or segment may remain."""

import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from verl_omni.weight_sync import buckets, buffers, ipc
from verl_omni.weight_sync.checks import StagedTensors
from verl_omni.weight_sync.errors import (
    DeadlineExceeded,
    IncompleteUpdate,
    PeerDisconnected,
    PeerFailed,
    SharedMemoryFull,
    TransferCancelled,
)
from verl_omni.weight_sync.messages import AbortMessage, BucketMessage, BufferMessage, Entry, Message, ReplyMessage

CPU = torch.device("cpu")


def segments() -> list[str]:
    return [path.name for path in Path("/dev/shm").glob(f"{buffers.SEGMENT_PREFIX}*")]


@pytest.fixture
def handle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    # Segments of other processes, such as an engine that is tested at the same time, do not count.
    monkeypatch.setattr(buffers, "SEGMENT_PREFIX", f"test_weights_{secrets.token_hex(8)}_")
    yield f"ipc://{tmp_path}/weights.sock"
    assert segments() == [], "a shared-memory segment remains"
    assert not (tmp_path / "weights.sock").exists(), "the socket file remains"


@pytest.fixture(autouse=True)
def small_first_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "INITIAL_BYTES", 16)


@contextmanager
def in_thread(work: Callable[[], Any]) -> Iterator[None]:
    """Run `work` in a thread that ends within this context."""
    thread = threading.Thread(target=work)
    thread.start()
    yield
    thread.join(30)
    assert not thread.is_alive(), "the other end hangs"


@contextmanager
def received(handle: str, consume: Callable[[Any], None], deadline: float = 20.0) -> Iterator[list[Any]]:
    """Run a receiver in a thread; afterwards the list holds its result or its error."""
    results: list[Any] = []

    def receiving() -> None:
        try:
            results.append(ipc.receive(consume, handle=handle, device=CPU, deadline=deadline))
        except Exception as error:
            results.append(error)

    with in_thread(receiving):
        yield results


def send_and_receive(
    handle: str,
    weights: Any,
    consume: Callable[[Any], None],
    *,
    bucket: int = 64,
    deadline: float = 20.0,
    stop: ipc.StopSignal | None = None,
) -> tuple[Any, Any]:
    """Run sender and receiver. Returns the result or the error of each."""
    with received(handle, consume, deadline) as results:
        try:
            sent: Any = ipc.send(weights, handle=handle, bucket_bytes=bucket, device=None, deadline=deadline, stop=stop)
        except Exception as error:
            sent = error
    return sent, results[0]


def tensors(number: int = 7) -> list[tuple[str, torch.Tensor]]:
    dtypes = (torch.float32, torch.bfloat16, torch.float16)
    return [(f"t{i}", torch.randn(3, i + 1).to(dtypes[i % 3])) for i in range(number)]


def long_names() -> list[tuple[str, torch.Tensor]]:
    """A megabyte of names in one bucket."""
    return [(f"{'layer.' * 200}{number}", torch.ones(1)) for number in range(900)]


@pytest.mark.parametrize("bucket", [1, 64, 4096])
def test_tensors_in_many_buckets_arrive_bit_exactly(handle: str, bucket: int) -> None:
    """Views of the buffer that are kept would all show the last bucket."""
    weights = tensors()
    staging = StagedTensors()
    sent, received = send_and_receive(handle, iter(weights), staging.add, bucket=bucket)
    assert sent == 7 and received == [name for name, _ in weights]
    for name, tensor in weights:
        assert staging.tensors[name].dtype == tensor.dtype
        assert torch.equal(staging.tensors[name], tensor)


def test_weights_are_read_one_at_a_time_as_buckets_are_confirmed(handle: str) -> None:
    """Bounded memory: the sender does not gather the whole model before it sends the first bucket."""
    taken: list[str] = []
    seen_at: list[int] = []

    def weights() -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in [(f"t{i}", torch.ones(8)) for i in range(10)]:
            taken.append(name)
            yield name, tensor

    send_and_receive(handle, weights(), lambda bucket: seen_at.append(len(taken)), bucket=64)
    assert len(seen_at) == 10 and seen_at == sorted(seen_at), "one tensor in each half of the buffer"
    # One tensor is read, one waits in the other half, and one has no room yet.
    assert all(taken_then <= number + 3 for number, taken_then in enumerate(seen_at))


def test_a_failing_receiver_does_not_hang_the_sender(handle: str) -> None:
    def refuse(bucket: Any) -> None:
        raise ValueError("no room")

    sent, received = send_and_receive(handle, tensors(), refuse)
    assert isinstance(sent, PeerFailed) and "ValueError: no room" in str(sent)
    assert isinstance(received, ValueError)


@pytest.mark.parametrize("good", [0, 1, 6])
def test_a_failing_sender_does_not_hang_the_receiver(handle: str, good: int) -> None:
    def weights() -> Iterator[tuple[str, torch.Tensor]]:
        yield from tensors(good)
        raise KeyError("gone")

    sent, received = send_and_receive(handle, weights(), lambda bucket: None)
    assert isinstance(sent, KeyError)
    assert isinstance(received, PeerFailed) and "aborted the update" in str(received) and "gone" in str(received)


@pytest.mark.parametrize("bucket", [16, 4096])
def test_a_repeated_name_is_refused(handle: str, bucket: int) -> None:
    """Also if the second one is in another bucket."""
    duplicated = [("a", torch.ones(4)), ("b", torch.ones(4)), ("a", torch.ones(4))]
    sent, received = send_and_receive(handle, duplicated, lambda bucket: None, bucket=bucket)
    assert isinstance(sent, IncompleteUpdate) and isinstance(received, PeerFailed)


def test_a_missing_peer_raises_at_the_deadline(handle: str) -> None:
    with pytest.raises(DeadlineExceeded):
        ipc.send(tensors(), handle=handle, bucket_bytes=64, device=None, deadline=0.2)
    with pytest.raises(DeadlineExceeded):
        ipc.receive(lambda bucket: None, handle=handle, device=CPU, deadline=0.2)


def test_the_socket_file_of_a_killed_sender_is_removed(handle: str) -> None:
    Path(handle.removeprefix("ipc://")).touch()
    with pytest.raises(DeadlineExceeded):
        ipc.receive(lambda bucket: None, handle=handle, device=CPU, deadline=0.2)


def test_the_last_message_of_a_receiver_that_disconnected_is_read(handle: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It fails and disconnects while the sender sends a message that does not fit into the kernel's buffer."""
    monkeypatch.setattr(buckets, "INITIAL_BYTES", 1 << 20)

    def receiving() -> None:
        with ipc.Channel(handle, 20.0, owner=False) as channel:
            channel.receive(Message)
            channel.send(ReplyMessage())
            while not channel.has_message():
                pass
            channel.send(ReplyMessage(failed="out of paper"))

    with in_thread(receiving), pytest.raises(PeerFailed, match="out of paper"):
        ipc.send(long_names(), handle=handle, bucket_bytes=1 << 20, device=None, deadline=20)


@pytest.mark.parametrize("word", [None, AbortMessage("called off")])
def test_an_update_fails_if_its_sender_disconnects_before_the_last_reply(handle: str, word: Any) -> None:
    """The trainer does not regard it as successful."""
    left = threading.Event()

    def sending() -> None:
        with ipc.Channel(handle, 20.0, owner=True) as channel:
            channel.send(BucketMessage({}, last=[]))
            if word is not None:
                channel.try_send(word)
        left.set()

    with (
        in_thread(sending),
        pytest.raises(
            PeerDisconnected if word is None else PeerFailed, match="disconnected without" if word is None else "called"
        ),
    ):
        ipc.receive(lambda bucket: left.wait(20), handle=handle, device=CPU, deadline=20)


def test_a_message_longer_than_the_socket_buffer_arrives(handle: str) -> None:
    """The names of a large model do not fit into the kernel's buffer, so each end waits for the other."""
    sent, received = send_and_receive(handle, long_names(), lambda bucket: None, bucket=1 << 20)
    assert sent == 900 and received == [name for name, _ in long_names()]


def test_a_waiting_sender_can_be_cancelled(handle: str) -> None:
    """There is no receiver, and the deadline is an hour away."""
    with ipc.StopSignal() as stop:
        stop.set()
        with pytest.raises(TransferCancelled):
            ipc.send(tensors(), handle=handle, bucket_bytes=64, device=None, deadline=3600, stop=stop)


def test_a_receiver_is_told_that_the_sender_was_cancelled(handle: str) -> None:
    release = threading.Event()

    def consume(bucket: Any) -> None:
        if not release.is_set():
            stop.set()
            waiter.join(20)  # the sender disconnects before this bucket is confirmed

    with ipc.StopSignal() as stop:
        errors: list[Any] = []

        def sending() -> None:
            try:
                ipc.send(tensors(), handle=handle, bucket_bytes=64, device=None, deadline=60, stop=stop)
            except Exception as error:
                errors.append(error)

        waiter = threading.Thread(target=sending)
        waiter.start()
        with pytest.raises(PeerFailed, match="was cancelled"):
            ipc.receive(consume, handle=handle, device=CPU, deadline=20)
    assert isinstance(errors[0], TransferCancelled)


@pytest.mark.parametrize(
    ("message", "refusal"),
    [
        (ReplyMessage(), "ReplyMessage"),
        (BufferMessage(16), "names no buffer"),
        (BucketMessage({"t": Entry((1,), "float31", 0, 0)}), "float31"),
    ],
)
def test_an_unexpected_message_to_the_receiver_is_refused(handle: str, message: Any, refusal: str) -> None:
    with received(handle, lambda bucket: None) as results, ipc.Channel(handle, 20.0, owner=True) as channel:
        channel.send(message)
        assert refusal in channel.receive(Message).failed
    assert isinstance(results[0], IncompleteUpdate)


def test_an_unexpected_message_to_the_sender_is_refused(handle: str) -> None:
    def receiving() -> None:
        with ipc.Channel(handle, 20.0, owner=False) as channel:
            channel.receive(Message)
            channel.send(BufferMessage(16))
            channel.receive(Message)  # the sender's abort message

    with (
        in_thread(receiving),
        pytest.raises(IncompleteUpdate, match="unexpected message of a weight update: BufferMessage"),
    ):
        ipc.send(tensors(), handle=handle, bucket_bytes=64, device=None, deadline=20)


def test_an_error_that_utf8_cannot_encode_is_reported(handle: str) -> None:
    """As an error with a file name that is not UTF-8."""

    def refuse(bucket: Any) -> None:
        raise ValueError("no file \udcff")

    sent, _ = send_and_receive(handle, tensors(), refuse)
    assert isinstance(sent, PeerFailed) and r"no file \udcff" in str(sent)


def test_bytes_of_another_protocol_are_refused(handle: str) -> None:
    """verl's own sender uses ZeroMQ, which starts a connection with these bytes."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(handle.removeprefix("ipc://"))
        listening.listen(1)

        def greeting() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.sendall(bytes([0xFF, 0, 0, 0, 0, 0, 0, 0, 1, 0x7F]))
                connection.recv(1 << 16)

        with in_thread(greeting), pytest.raises(IncompleteUpdate, match="malformed message"):
            ipc.receive(lambda bucket: None, handle=handle, device=CPU, deadline=20)
    Path(handle.removeprefix("ipc://")).unlink()


def test_full_shared_memory_raises_instead_of_killing_the_process(handle: str) -> None:
    """Without reserved pages, the first write to a missing page kills the process with SIGBUS."""
    free = buffers._free_shared_memory()
    buffer = buffers.SendBuffer(None)
    try:
        with pytest.raises(SharedMemoryFull, match="Enlarge it"):
            buffer.replace(needed=free * 2, preferred=free * 2)
    finally:
        buffer.close()


def test_a_buffer_uses_at_most_half_of_the_free_memory(handle: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "_free_shared_memory", lambda: 1 << 16)
    buffer = buffers.SendBuffer(None)
    try:
        assert buffer.replace(needed=100, preferred=1 << 30).size == 1 << 15
        assert buffer.replace(needed=1 << 17, preferred=1 << 30).size == 1 << 17
        assert len(segments()) == 1
    finally:
        buffer.close()
