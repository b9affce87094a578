"""Weight transfer over real sockets and shared memory, with failures on either side; nothing may be left."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_omni.weight_sync import names, transfer
from verl_omni.weight_sync.errors import DeadlineExceeded, IncompleteUpdate, PeerFailed
from verl_omni.weight_sync.staging import Staging, check_names

CPU = torch.device("cpu")


def segments() -> list[str]:
    return [path.name for path in Path("/dev/shm").glob(f"{transfer.SEGMENT_PREFIX}*")]


@pytest.fixture
def handle(tmp_path: Path) -> Iterator[str]:
    before = segments()
    yield f"ipc://{tmp_path}/weights.sock"
    assert segments() == before, "a shared-memory segment was left"
    assert not (tmp_path / "weights.sock").exists(), "the socket file was left"


def both(
    handle: str, weights: Any, consume: Callable[[Any], None], *, bucket: int = 64, deadline: float = 20.0
) -> tuple[Any, Any]:
    """Run sender and receiver; what each returned or raised."""
    found: list[Any] = [None]

    def receiving() -> None:
        try:
            found[0] = transfer.receive(consume, handle=handle, device=CPU, deadline=deadline)
        except Exception as error:
            found[0] = error

    thread = threading.Thread(target=receiving)
    thread.start()
    try:
        sent: Any = transfer.send(weights, handle=handle, bucket_bytes=bucket, device=None, deadline=deadline)
    except Exception as error:
        sent = error
    thread.join(30)
    assert not thread.is_alive(), "the receiver hangs"
    return sent, found[0]


def tensors(number: int = 7) -> list[tuple[str, torch.Tensor]]:
    dtypes = (torch.float32, torch.bfloat16, torch.float16)
    return [(f"t{i}", torch.randn(3, i + 1).to(dtypes[i % 3])) for i in range(number)]


@pytest.mark.parametrize("bucket", [1, 64, 4096])
def test_many_buckets_arrive_bit_exactly(handle: str, bucket: int) -> None:
    """Fault 2: kept views of the buffer would all show the last bucket."""
    weights, staging = tensors(), Staging()
    sent, received = both(handle, weights, staging.add, bucket=bucket)
    assert sent == 7 and received == [name for name, _ in weights]
    for name, tensor in weights:
        assert staging.tensors[name].dtype == tensor.dtype
        assert torch.equal(staging.tensors[name], tensor)


def test_a_tensor_larger_than_the_bucket_arrives(handle: str) -> None:
    staging, large = Staging(), torch.randn(1000)
    both(handle, [("small", torch.ones(2)), ("large", large)], staging.add, bucket=16)
    assert torch.equal(staging.tensors["large"], large)


def test_a_raising_receiver_does_not_hang_the_sender(handle: str) -> None:
    """Fault 5."""

    def refuse(bucket: Any) -> None:
        raise ValueError("no room")

    sent, received = both(handle, tensors(), refuse)
    assert isinstance(sent, PeerFailed) and "no room" in str(sent)
    assert isinstance(received, ValueError)


def test_a_raising_sender_does_not_hang_the_receiver(handle: str) -> None:
    duplicated = [("a", torch.ones(4)), ("a", torch.ones(4))]
    sent, received = both(handle, duplicated, lambda bucket: None, bucket=4096)
    assert isinstance(sent, IncompleteUpdate)
    assert isinstance(received, PeerFailed) and "abandoned" in str(received)


def test_silence_ends_at_the_deadline(handle: str) -> None:
    with pytest.raises(DeadlineExceeded):
        transfer.send(tensors(), handle=handle, bucket_bytes=64, device=None, deadline=0.2)
    with pytest.raises(DeadlineExceeded):
        transfer.receive(lambda bucket: None, handle=handle, device=CPU, deadline=0.2)


def test_other_bytes_than_were_sent_are_noticed(handle: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = transfer._fill

    def wrong(buffer: torch.Tensor, bucket: Any, *, digested: bool) -> Any:
        made = entry(buffer, bucket, digested=digested)
        buffer[0] ^= 1
        return made

    monkeypatch.setattr(transfer, "_fill", wrong)
    sent, received = both(handle, [("a", torch.ones(8))], lambda bucket: None, bucket=4096)
    assert isinstance(received, IncompleteUpdate) and "other bytes" in str(received)
    assert isinstance(sent, PeerFailed)


def test_values_that_are_not_finite_are_refused(handle: str) -> None:
    sent, received = both(handle, [("a", torch.tensor([1.0, float("nan")]))], Staging().add)
    assert isinstance(received, IncompleteUpdate) and isinstance(sent, PeerFailed)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=12), st.integers(1, 200))
@settings(max_examples=60, deadline=None)
def test_buckets_keep_order_and_size(sizes: list[int], bucket: int) -> None:
    named = [(f"t{i}", torch.zeros(size, dtype=torch.uint8)) for i, size in enumerate(sizes)]
    largest = max([bucket, *sizes])
    made = list(transfer._buckets(named, largest))
    assert [name for part, _ in made for name, _ in part] == [name for name, _ in named]
    assert all(sum(t.nbytes for _, t in part) <= largest for part, _ in made)
    assert [last for _, last in made] == [False] * (len(made) - 1) + [True]


@given(st.sets(st.text("abc", min_size=1)), st.sets(st.text("abc", min_size=1)))
@settings(deadline=None)
def test_names_must_be_the_same(wanted: set[str], found: set[str]) -> None:
    if wanted == found:
        check_names(wanted, found)
    else:
        with pytest.raises(IncompleteUpdate):
            check_names(wanted, found)


def test_handles_and_adapter_names() -> None:
    assert names.make_update_zmq_id(None, 3) == "step-none-seq-3"
    assert names.make_update_zmq_handle("ipc:///tmp/a.sock", "step-1-seq-0") == "ipc:///tmp/a-update-step-1-seq-0.sock"
    assert names.make_update_zmq_handle("tcp://x", "u") == "tcp://x"
    assert names.adapter_modules(["m.q.lora_A.weight", "m.q.lora_B.weight"]) == {"m.q"}
    with pytest.raises(ValueError, match="half of a LoRA pair"):
        names.adapter_modules(["m.q.lora_A.weight"])
    with pytest.raises(ValueError, match="not a LoRA tensor"):
        names.adapter_modules(["m.q.weight"])
