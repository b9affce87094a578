"""Packing, digests, staging and names: values in, values out."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_omni.weight_sync import errors, messages, names, packing
from verl_omni.weight_sync.digest import digest, mixed_sum
from verl_omni.weight_sync.errors import IncompleteUpdate
from verl_omni.weight_sync.messages import Begin
from verl_omni.weight_sync.staging import Staging, check_finite, check_names, few

DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.uint8, torch.int64]


class HostBuffer:
    """A buffer in this process that notes its sizes."""

    def __init__(self) -> None:
        self.tensor = torch.empty(0, dtype=torch.uint8)
        self.sizes: list[int] = []

    def replace(self, needed: int, wanted: int) -> Begin:
        self.tensor = torch.zeros(wanted, dtype=torch.uint8)
        self.sizes.append(wanted)
        return Begin(wanted)


class Reader:
    """A receiver in the same thread. It reads as late as it may: what is overwritten before shows."""

    def __init__(self, buffer: HostBuffer) -> None:
        self.buffer, self.buckets, self.last = buffer, [], None
        self.unread: list[Any] = []
        self.most_unread = 0
        self.staging = Staging()

    def give(self, message: Any) -> None:
        assert self.last is None, "nothing may follow the last bucket"
        if isinstance(message, Begin):
            assert not self.unread, "the buffer was dropped under the reader"
        self.unread.append(message)
        self.most_unread = max(self.most_unread, len(self.unread))

    def wait(self, unconfirmed: int) -> None:
        while len(self.unread) > unconfirmed:
            message = self.unread.pop(0)
            if isinstance(message, Begin):
                continue
            bucket = packing.unpacked(self.buffer.tensor, message.entries, torch.device("cpu"))
            self.staging.add(bucket)
            self.buckets.append([name for name, _ in bucket])
            self.last = message.last


@given(st.lists(st.tuples(st.integers(0, 40), st.sampled_from(DTYPES)), max_size=14), st.integers(1, 300))
@settings(max_examples=80, deadline=None)
def test_all_tensors_arrive_once_in_order_through_a_bounded_buffer(kinds: list[Any], limit: int) -> None:
    weights = [(f"t{i}", (torch.rand(n) * 100).to(dtype)) for i, (n, dtype) in enumerate(kinds)]
    buffer = HostBuffer()
    reader = Reader(buffer)
    packer = packing.Packer(buffer, reader, limit)
    for name, tensor in weights:
        packer.put(name, tensor)
    sent = packer.finish()
    assert sent == reader.last == [name for name, _ in weights]
    assert [name for bucket in reader.buckets for name in bucket] == sent
    for name, tensor in weights:
        assert torch.equal(reader.staging.tensors[name], tensor)
    largest = max([limit, *(tensor.nbytes for _, tensor in weights)])
    assert all(size <= largest for size in buffer.sizes)
    assert buffer.sizes == sorted(buffer.sizes), "a buffer never shrinks within an update"


def test_the_buffer_grows_towards_the_bucket_and_not_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "FIRST", 8)
    buffer = HostBuffer()
    packer = packing.Packer(buffer, Reader(buffer), 100)
    for index in range(60):
        packer.put(f"t{index}", torch.ones(2))
    packer.finish()
    assert buffer.sizes == [16, 100]


def test_one_half_is_filled_while_the_other_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "FIRST", 64)
    buffer = HostBuffer()
    reader = Reader(buffer)
    packer = packing.Packer(buffer, reader, 64)
    for index in range(8):
        packer.put(f"t{index}", torch.full((4,), float(index)))
    assert len(reader.unread) == 1, "while one half is filled, the other is with the reader"
    packer.finish()
    assert [len(bucket) for bucket in reader.buckets] == [2, 2, 2, 2]
    assert reader.most_unread == 2


def test_memory_that_is_short_is_asked_for_once() -> None:
    class Short(HostBuffer):
        def replace(self, needed: int, wanted: int) -> Begin:
            return super().replace(needed, min(wanted, 256))

    buffer = Short()
    reader = Reader(buffer)
    packer = packing.Packer(buffer, reader, 1 << 20)
    for index in range(50):
        packer.put(f"t{index}", torch.ones(16))
    packer.finish()
    assert buffer.sizes == [256]
    assert len(reader.staging.tensors) == 50


@given(st.binary(min_size=1, max_size=64), st.data())
@settings(max_examples=120, deadline=None)
@pytest.mark.parametrize("summed", [digest, mixed_sum])
def test_a_changed_byte_changes_the_digest(summed: Any, content: bytes, data: st.DataObject) -> None:
    tensor = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    other = tensor.clone()
    other[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    assert summed(tensor.clone()) == summed(tensor.clone()) != summed(other)


@pytest.mark.parametrize("summed", [digest, mixed_sum])
def test_moved_words_change_the_digest(summed: Any) -> None:
    """Also words that differ in their signs alone, as weights often do."""
    signs = torch.tensor([1.0, 1.0, 1.0, -1.0, 1.0, 1.0, 2.0, 2.0]).view(torch.uint8)
    moved = torch.tensor([1.0, -1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 2.0]).view(torch.uint8)
    rolled = signs.roll(8)
    assert len({summed(signs), summed(moved), summed(rolled)}) == 3


def test_a_device_digest_does_not_depend_on_its_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    from verl_omni.weight_sync import digest as module

    content = torch.randn(1001).view(torch.uint8)
    whole = mixed_sum(content)
    monkeypatch.setattr(module, "CHUNK", 7)
    assert mixed_sum(content) == whole


@given(st.permutations(list(range(6))), st.integers(0, 5))
@settings(deadline=None)
def test_staging_copies_and_takes_each_name_once(order: list[int], again: int) -> None:
    staging, source = Staging(), torch.arange(6.0)
    for index in order:
        staging.add([(f"t{index}", source[index : index + 1])])
    source.zero_()
    assert [staging.tensors[f"t{i}"].item() for i in range(6)] == [0, 1, 2, 3, 4, 5]
    with pytest.raises(IncompleteUpdate, match="arrived twice"):
        staging.add([(f"t{again}", torch.ones(1))])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2])
def test_not_finite_values_are_found_in_every_float(dtype: torch.dtype) -> None:
    check_finite("a", torch.ones(3).to(dtype))
    check_finite("a", torch.ones(3, dtype=torch.int32))
    with pytest.raises(IncompleteUpdate, match="not finite"):
        check_finite("a", torch.tensor([1.0, float("nan")]).to(dtype))


@given(st.sets(st.text("abc", min_size=1)), st.sets(st.text("abc", min_size=1)))
@settings(deadline=None)
def test_names_must_be_the_same(wanted: set[str], found: set[str]) -> None:
    if wanted == found:
        check_names(wanted, found)
    else:
        with pytest.raises(IncompleteUpdate):
            check_names(wanted, found)


def test_long_lists_of_names_are_cut() -> None:
    assert few("abc") == "a, b, c (3)"
    assert few("abcdefg") == "a, b, c, d, e … (7)"


def test_handles_and_adapter_names() -> None:
    assert names.make_update_zmq_id(None, 3) == "step-none-seq-3"
    assert names.make_update_zmq_handle("ipc:///tmp/a.sock", "step-1-seq-0") == "ipc:///tmp/a-update-step-1-seq-0.sock"
    assert names.make_update_zmq_handle("tcp://x", "u") == "tcp://x"
    assert names.make_update_zmq_handle("ipc:///tmp/a.sock", None) == "ipc:///tmp/a.sock"


@pytest.mark.parametrize("kind", errors.WeightSyncError.__subclasses__())
def test_an_error_keeps_its_class_through_text_and_pickle(kind: type[errors.WeightSyncError]) -> None:
    """vLLM-Omni hands a worker's exception on as text, Ray pickles it."""
    error = kind("two of\nthree")
    carried = errors.from_text(f"update_weights_from_ipc failed in 1 of 1 workers: {error}")
    assert type(carried) is kind and "two of\nthree" in str(carried)
    assert type(pickle.loads(pickle.dumps(error))) is kind
    assert type(errors.from_text("[KeyError] x")) is errors.WeightSyncError


words = st.text(st.characters(codec="utf-8"))
entries = st.builds(
    messages.Entry, st.lists(st.integers(0, 2**40), max_size=5).map(tuple), words, st.integers(0, 2**62),
    st.integers(-(2**63), 2**64 - 1),
)  # fmt: skip


@given(
    st.builds(messages.Begin, st.integers(0, 2**62), st.none() | words, st.none() | st.binary())
    | st.builds(messages.BucketMessage, st.dictionaries(words, entries), st.none() | st.lists(words))
    | st.builds(messages.Abandon, words)
    | st.builds(messages.Answer, st.none() | words)
)
def test_a_message_is_what_its_bytes_say(message: messages.Message) -> None:
    assert messages.decoded(messages.encoded(message)) == message


@pytest.mark.parametrize("content", [b"", b"\x93\x01\x02\x03", b"\x91\xa7Another", pickle.dumps({})])
def test_other_bytes_are_no_message(content: bytes) -> None:
    with pytest.raises(IncompleteUpdate, match="what came is no message"):
        messages.decoded(content)


def test_every_dtype_has_a_name() -> None:
    every = {each for each in vars(torch).values() if isinstance(each, torch.dtype)}
    assert len(every) > 20 and all(messages.dtype_of(messages.name_of(each)) is each for each in every)
