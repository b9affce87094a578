"""Weight transfer over real sockets and shared memory, with failures on either side; nothing may be left."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from verl_omni.weight_sync import buffers, packing, transfer
from verl_omni.weight_sync.errors import (
    CalledOff,
    DeadlineExceeded,
    IncompleteUpdate,
    NoRoom,
    PeerFailed,
    PeerGone,
)
from verl_omni.weight_sync.messages import Abandon, Answer, Begin, BucketMessage, Entry
from verl_omni.weight_sync.staging import Staging

CPU = torch.device("cpu")


def segments() -> list[str]:
    return [path.name for path in Path("/dev/shm").glob(f"{transfer.SEGMENT_PREFIX}*")]


@pytest.fixture
def handle(tmp_path: Path) -> Iterator[str]:
    before = segments()
    yield f"ipc://{tmp_path}/weights.sock"
    assert segments() == before, "a shared-memory segment was left"
    assert not (tmp_path / "weights.sock").exists(), "the socket file was left"


@pytest.fixture(autouse=True)
def small_first_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "FIRST", 16)


@contextmanager
def beside(work: Callable[[], Any]) -> Iterator[None]:
    """Do `work` in a thread, which ends within this context."""
    thread = threading.Thread(target=work)
    thread.start()
    yield
    thread.join(30)
    assert not thread.is_alive(), "the other end hangs"


@contextmanager
def received(handle: str, consume: Callable[[Any], None], deadline: float = 20.0) -> Iterator[list[Any]]:
    """A receiver meanwhile; afterwards the list holds what it returned or raised."""
    found: list[Any] = []

    def receiving() -> None:
        try:
            found.append(transfer.receive(consume, handle=handle, device=CPU, deadline=deadline))
        except Exception as error:
            found.append(error)

    with beside(receiving):
        yield found


def both(
    handle: str,
    weights: Any,
    consume: Callable[[Any], None],
    *,
    bucket: int = 64,
    deadline: float = 20.0,
    stop: transfer.Stop | None = None,
) -> tuple[Any, Any]:
    """Run sender and receiver; what each returned or raised."""
    with received(handle, consume, deadline) as found:
        try:
            sent: Any = transfer.send(
                weights, handle=handle, bucket_bytes=bucket, device=None, deadline=deadline, stop=stop
            )
        except Exception as error:
            sent = error
    return sent, found[0]


def tensors(number: int = 7) -> list[tuple[str, torch.Tensor]]:
    dtypes = (torch.float32, torch.bfloat16, torch.float16)
    return [(f"t{i}", torch.randn(3, i + 1).to(dtypes[i % 3])) for i in range(number)]


def long_names() -> list[tuple[str, torch.Tensor]]:
    """A megabyte of names in one bucket."""
    return [(f"{'layer.' * 200}{number}", torch.ones(1)) for number in range(900)]


@pytest.mark.parametrize("bucket", [1, 64, 4096])
def test_many_buckets_arrive_bit_exactly(handle: str, bucket: int) -> None:
    """Fault 2: kept views of the buffer would all show the last bucket."""
    weights, staging = tensors(), Staging()
    sent, received = both(handle, iter(weights), staging.add, bucket=bucket)
    assert sent == 7 and received == [name for name, _ in weights]
    for name, tensor in weights:
        assert staging.tensors[name].dtype == tensor.dtype
        assert torch.equal(staging.tensors[name], tensor)


def test_a_tensor_larger_than_the_bucket_arrives(handle: str) -> None:
    staging, large = Staging(), torch.randn(1000)
    both(handle, [("small", torch.ones(2)), ("large", large), ("end", torch.ones(1))], staging.add, bucket=16)
    assert torch.equal(staging.tensors["large"], large) and len(staging.tensors) == 3


def test_tensors_of_no_elements_or_no_dimensions_arrive(handle: str) -> None:
    staging = Staging()
    both(handle, [("none", torch.ones(0, 3)), ("one", torch.tensor(2.5)), ("flag", torch.tensor(True))], staging.add)
    assert staging.tensors["none"].shape == (0, 3)
    assert staging.tensors["one"].item() == 2.5 and staging.tensors["flag"].item() is True


def test_an_update_without_tensors_ends(handle: str) -> None:
    assert both(handle, [], lambda bucket: None) == (0, [])


def test_weights_are_taken_one_at_a_time_and_confirmed_in_buckets(handle: str) -> None:
    """Bounded memory: a whole model is never gathered before its first bucket is gone."""
    taken: list[str] = []
    seen_at: list[int] = []

    def weights() -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in [(f"t{i}", torch.ones(8)) for i in range(10)]:
            taken.append(name)
            yield name, tensor

    both(handle, weights(), lambda bucket: seen_at.append(len(taken)), bucket=64)
    assert len(seen_at) == 10 and seen_at == sorted(seen_at), "one in each half of the buffer"
    # One is read, one waits in the other half, and one is at hand for which there is no room yet.
    assert all(taken_then <= number + 3 for number, taken_then in enumerate(seen_at))


def test_a_raising_receiver_does_not_hang_the_sender(handle: str) -> None:
    """Fault 5."""

    def refuse(bucket: Any) -> None:
        raise ValueError("no room")

    sent, received = both(handle, tensors(), refuse)
    assert isinstance(sent, PeerFailed) and "ValueError: no room" in str(sent)
    assert isinstance(received, ValueError)


@pytest.mark.parametrize("good", [0, 1, 6])
def test_a_raising_sender_does_not_hang_the_receiver(handle: str, good: int) -> None:
    def weights() -> Iterator[tuple[str, torch.Tensor]]:
        yield from tensors(good)
        raise KeyError("gone")

    sent, received = both(handle, weights(), lambda bucket: None)
    assert isinstance(sent, KeyError)
    assert isinstance(received, PeerFailed) and "abandoned" in str(received) and "gone" in str(received)


@pytest.mark.parametrize("bucket", [16, 4096])
def test_a_name_may_come_once(handle: str, bucket: int) -> None:
    """Also where the second is in another bucket."""
    duplicated = [("a", torch.ones(4)), ("b", torch.ones(4)), ("a", torch.ones(4))]
    sent, received = both(handle, duplicated, lambda bucket: None, bucket=bucket)
    assert isinstance(sent, IncompleteUpdate) and isinstance(received, PeerFailed)


def test_silence_ends_at_the_deadline(handle: str) -> None:
    with pytest.raises(DeadlineExceeded):
        transfer.send(tensors(), handle=handle, bucket_bytes=64, device=None, deadline=0.2)
    with pytest.raises(DeadlineExceeded):
        transfer.receive(lambda bucket: None, handle=handle, device=CPU, deadline=0.2)


def test_the_socket_of_a_sender_that_was_killed_is_removed(handle: str) -> None:
    Path(handle.removeprefix("ipc://")).touch()
    with pytest.raises(DeadlineExceeded):
        transfer.receive(lambda bucket: None, handle=handle, device=CPU, deadline=0.2)


@pytest.mark.parametrize("answers", [0, 1, 3])
def test_a_receiver_that_leaves_without_a_word_is_missed_at_once(handle: str, answers: int) -> None:
    """The kernel closes the socket of a process that is killed. The deadline is an hour away."""

    def receiving() -> None:
        with transfer.Channel(handle, 20.0, owner=False) as channel:
            for _ in range(answers):
                channel.receive()
                channel.send(Answer())
            channel.receive()

    with beside(receiving), pytest.raises(PeerGone, match="left without a word"):
        transfer.send(tensors(), handle=handle, bucket_bytes=16, device=None, deadline=3600)


def test_a_sender_that_leaves_without_a_word_is_missed_at_once_and_its_file_removed(handle: str) -> None:
    path = handle.removeprefix("ipc://")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(path)
        listening.listen(1)

        def leaving() -> None:
            listening.accept()[0].close()

        with beside(leaving), pytest.raises(PeerGone, match="left without a word"):
            transfer.receive(lambda bucket: None, handle=handle, device=CPU, deadline=3600)


def test_the_last_word_of_a_receiver_that_left_is_heard(handle: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It fails and leaves while the sender hands over a message that the kernel's buffer does not hold."""
    monkeypatch.setattr(packing, "FIRST", 1 << 20)

    def receiving() -> None:
        with transfer.Channel(handle, 20.0, owner=False) as channel:
            channel.receive()
            channel.send(Answer())
            while not channel.heard():
                pass
            channel.send(Answer(failed="out of paper"))

    with beside(receiving), pytest.raises(PeerFailed, match="out of paper"):
        transfer.send(long_names(), handle=handle, bucket_bytes=1 << 20, device=None, deadline=20)


@pytest.mark.parametrize("word", [None, Abandon("called off")])
def test_an_update_whose_sender_left_before_the_last_answer_is_none(handle: str, word: Any) -> None:
    """The trainer does not count on it."""
    left = threading.Event()

    def sending() -> None:
        with transfer.Channel(handle, 20.0, owner=True) as channel:
            channel.send(transfer.BucketMessage({}, last=[]))
            if word is not None:
                channel.tell(word)
        left.set()

    with (
        beside(sending),
        pytest.raises(PeerGone if word is None else PeerFailed, match="without a word" if word is None else "called"),
    ):
        transfer.receive(lambda bucket: left.wait(20), handle=handle, device=CPU, deadline=20)


def test_a_message_longer_than_the_socket_holds_arrives(handle: str) -> None:
    """Each waits where the other is slow: the names of a large model do not fit into the kernel's buffer."""
    sent, received = both(handle, long_names(), lambda bucket: None, bucket=1 << 20)
    assert sent == 900 and received == [name for name, _ in long_names()]


def test_weights_travel_within_a_host(handle: str) -> None:
    with pytest.raises(ValueError, match=r"by ipc:// and not by tcp://there:1"):
        transfer.send(tensors(), handle="tcp://there:1", bucket_bytes=64, device=None, deadline=1)


def test_a_sender_that_waits_can_be_called_off(handle: str) -> None:
    """Nobody listens; the deadline is an hour away."""
    with transfer.Stop() as stop:
        stop.set()
        with pytest.raises(CalledOff):
            transfer.send(tensors(), handle=handle, bucket_bytes=64, device=None, deadline=3600, stop=stop)


def test_a_receiver_hears_that_the_sender_was_called_off(handle: str) -> None:
    release = threading.Event()

    def consume(bucket: Any) -> None:
        if not release.is_set():
            stop.set()
            waiter.join(20)  # the sender has left before this bucket is confirmed

    with transfer.Stop() as stop:
        found: list[Any] = []

        def sending() -> None:
            try:
                transfer.send(tensors(), handle=handle, bucket_bytes=64, device=None, deadline=60, stop=stop)
            except Exception as error:
                found.append(error)

        waiter = threading.Thread(target=sending)
        waiter.start()
        with pytest.raises(PeerFailed, match="called off"):
            transfer.receive(consume, handle=handle, device=CPU, deadline=20)
    assert isinstance(found[0], CalledOff)


def test_other_bytes_than_were_sent_are_noticed(handle: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A view that is read after the next bucket was written would be such a fault."""
    upstream = transfer.opened

    def overwritten(begin: Any, device: torch.device) -> torch.Tensor:
        buffer = upstream(begin, device)
        return buffer.roll(8)

    monkeypatch.setattr(transfer, "opened", overwritten)
    sent, received = both(handle, [("a", torch.arange(8.0))], lambda bucket: None, bucket=4096)
    assert isinstance(received, IncompleteUpdate) and "other bytes" in str(received)
    assert isinstance(sent, PeerFailed)


@pytest.mark.parametrize(
    ("message", "said"),
    [(Answer(), "Answer"), (Begin(16), "no buffer"), (BucketMessage({"t": Entry((1,), "float31", 0, 0)}), "float31")],
)
def test_a_message_that_means_nothing_to_the_receiver_is_refused(handle: str, message: Any, said: str) -> None:
    with received(handle, lambda bucket: None) as found, transfer.Channel(handle, 20.0, owner=True) as channel:
        channel.send(message)
        assert said in channel.receive().failed
    assert isinstance(found[0], IncompleteUpdate)


def test_a_message_that_is_no_answer_is_refused(handle: str) -> None:
    def receiving() -> None:
        with transfer.Channel(handle, 20.0, owner=False) as channel:
            channel.receive()
            channel.send(Begin(16))
            channel.receive()  # the sender's word on it

    with beside(receiving), pytest.raises(IncompleteUpdate, match="Begin, which is no answer"):
        transfer.send(tensors(), handle=handle, bucket_bytes=64, device=None, deadline=20)


def test_an_error_that_is_no_utf8_is_told(handle: str) -> None:
    """As one that names a file whose name is none."""

    def refuse(bucket: Any) -> None:
        raise ValueError("no file \udcff")

    sent, _ = both(handle, tensors(), refuse)
    assert isinstance(sent, PeerFailed) and r"no file \udcff" in str(sent)


def test_what_is_no_message_at_all_is_refused(handle: str) -> None:
    """As of ZeroMQ, by which verl's own sender speaks: it greets with these bytes."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(handle.removeprefix("ipc://"))
        listening.listen(1)

        def greeting() -> None:
            other, _ = listening.accept()
            with other:
                other.sendall(bytes([0xFF, 0, 0, 0, 0, 0, 0, 0, 1, 0x7F]))
                other.recv(1 << 16)

        with beside(greeting), pytest.raises(IncompleteUpdate, match="no message of an update"):
            transfer.receive(lambda bucket: None, handle=handle, device=CPU, deadline=20)
    Path(handle.removeprefix("ipc://")).unlink()


def test_values_that_are_not_finite_are_refused(handle: str) -> None:
    sent, received = both(handle, [("a", torch.tensor([1.0, float("nan")]))], Staging().add)
    assert isinstance(received, IncompleteUpdate) and isinstance(sent, PeerFailed)


def test_full_shared_memory_is_an_error_and_not_a_dead_process(handle: str) -> None:
    """Without reserving pages, the first write to one that is not there ends the process with SIGBUS."""
    free = buffers._free_shared_memory()
    buffer = buffers.Outgoing(None)
    try:
        with pytest.raises(NoRoom, match="enlarge it"):
            buffer.replace(needed=free * 2, wanted=free * 2)
    finally:
        buffer.close()


def test_a_buffer_takes_at_most_half_of_what_is_free(handle: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "_free_shared_memory", lambda: 1 << 16)
    buffer = buffers.Outgoing(None)
    try:
        assert buffer.replace(needed=100, wanted=1 << 30).size == 1 << 15
        assert buffer.replace(needed=1 << 17, wanted=1 << 30).size == 1 << 17
        assert len(segments()) >= 1
    finally:
        buffer.close()
