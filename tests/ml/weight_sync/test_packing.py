"""Packing, digests, staging, names and messages."""

import pickle
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_omni.weight_sync import buckets, errors, messages
from verl_omni.weight_sync.buckets import compute_digest, device_digest, unpack
from verl_omni.weight_sync.checks import StagedTensors, check_finite
from verl_omni.weight_sync.errors import IncompleteUpdate
from verl_omni.weight_sync.messages import BufferMessage

DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.uint8, torch.int64]


class CpuBuffer:
    """A buffer in this process that records its sizes."""

    def __init__(self) -> None:
        self.tensor = torch.empty(0, dtype=torch.uint8)
        self.sizes: list[int] = []

    def replace(self, needed: int, preferred: int) -> BufferMessage:
        self.tensor = torch.zeros(preferred, dtype=torch.uint8)
        self.sizes.append(preferred)
        return BufferMessage(preferred)


class Reader:
    """A receiver in the same thread. It reads as late as possible, so that an early overwrite is detected."""

    def __init__(self, buffer: CpuBuffer) -> None:
        self.buffer = buffer
        self.buckets = []
        self.last = None
        self.unread: list[Any] = []
        self.most_unread = 0
        self.staging = StagedTensors()

    def send(self, message: Any) -> None:
        assert self.last is None, "a message follows the last bucket"
        if isinstance(message, BufferMessage):
            assert not self.unread, "the buffer was replaced before it was read"
        self.unread.append(message)
        self.most_unread = max(self.most_unread, len(self.unread))

    def wait_for_replies(self, pending: int) -> None:
        while len(self.unread) > pending:
            message = self.unread.pop(0)
            if isinstance(message, BufferMessage):
                continue
            bucket = buckets.unpack(self.buffer.tensor, message.entries, torch.device("cpu"))
            self.staging.add(bucket)
            self.buckets.append([name for name, _ in bucket])
            self.last = message.last


@given(st.lists(st.tuples(st.integers(0, 40), st.sampled_from(DTYPES)), max_size=14), st.integers(1, 300))
@settings(max_examples=80, deadline=None)
def test_all_tensors_arrive_once_in_order_through_a_bounded_buffer(kinds: list[Any], limit: int) -> None:
    weights = [(f"t{i}", (torch.rand(n) * 100).to(dtype)) for i, (n, dtype) in enumerate(kinds)]
    buffer = CpuBuffer()
    reader = Reader(buffer)
    packer = buckets.Packer(buffer, reader, limit)
    for name, tensor in weights:
        packer.add(name, tensor)
    sent = packer.finish()
    assert sent == reader.last == [name for name, _ in weights]
    assert [name for bucket in reader.buckets for name in bucket] == sent
    for name, tensor in weights:
        assert torch.equal(reader.staging.tensors[name], tensor)
    largest = max([limit, *(tensor.nbytes for _, tensor in weights)])
    assert all(size <= largest for size in buffer.sizes)
    assert buffer.sizes == sorted(buffer.sizes), "a buffer never shrinks within an update"


def test_one_half_is_filled_while_the_other_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "INITIAL_BYTES", 64)
    buffer = CpuBuffer()
    reader = Reader(buffer)
    packer = buckets.Packer(buffer, reader, 64)
    for index in range(8):
        packer.add(f"t{index}", torch.full((4,), float(index)))
    assert len(reader.unread) == 1, "while one half is filled, the receiver has the other"
    packer.finish()
    assert [len(bucket) for bucket in reader.buckets] == [2, 2, 2, 2]
    assert reader.most_unread == 2


@given(st.binary(min_size=1, max_size=64), st.data())
@settings(max_examples=120, deadline=None)
@pytest.mark.parametrize("summed", [compute_digest, device_digest])
def test_a_changed_byte_changes_the_digest(summed: Any, content: bytes, data: st.DataObject) -> None:
    tensor = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    changed = tensor.clone()
    changed[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    assert summed(tensor.clone()) == summed(tensor.clone()) != summed(changed)


@pytest.mark.parametrize("summed", [compute_digest, device_digest])
def test_moved_words_change_the_digest(summed: Any) -> None:
    """Also words that differ in their signs only, as weights often do."""
    signs = torch.tensor([1.0, 1.0, 1.0, -1.0, 1.0, 1.0, 2.0, 2.0]).view(torch.uint8)
    moved = torch.tensor([1.0, -1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 2.0]).view(torch.uint8)
    rolled = signs.roll(8)
    assert len({summed(signs), summed(moved), summed(rolled)}) == 3


@given(st.permutations(list(range(6))), st.integers(0, 5))
@settings(deadline=None)
def test_staging_copies_and_refuses_repeated_names(order: list[int], again: int) -> None:
    staging = StagedTensors()
    source = torch.arange(6.0)
    for index in order:
        staging.add([(f"t{index}", source[index : index + 1])])
    source.zero_()
    assert [staging.tensors[f"t{i}"].item() for i in range(6)] == [0, 1, 2, 3, 4, 5]
    with pytest.raises(IncompleteUpdate, match="arrived twice"):
        staging.add([(f"t{again}", torch.ones(1))])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2])
def test_non_finite_values_are_detected_in_every_float_dtype(dtype: torch.dtype) -> None:
    check_finite("a", torch.ones(3).to(dtype))
    check_finite("a", torch.ones(3, dtype=torch.int32))
    with pytest.raises(IncompleteUpdate, match="not finite"):
        check_finite("a", torch.tensor([1.0, float("nan")]).to(dtype))


@pytest.mark.parametrize("kind", errors.WeightSyncError.__subclasses__())
def test_an_error_keeps_its_class_through_text_and_pickle(kind: type[errors.WeightSyncError]) -> None:
    """vLLM-Omni passes a worker's exception on as text, and Ray pickles it."""
    error = kind("two of\nthree")
    parsed = errors.parse_error(f"update_weights_from_ipc failed in 1 of 1 workers: {error}")
    assert type(parsed) is kind and "two of\nthree" in str(parsed)
    assert type(pickle.loads(pickle.dumps(error))) is kind
    assert type(errors.parse_error("[KeyError] x")) is errors.WeightSyncError


texts = st.text(st.characters(codec="utf-8"))
entries = st.builds(
    messages.Entry,
    st.lists(st.integers(0, 2**40), max_size=5).map(tuple),
    texts,
    st.integers(0, 2**62),
    st.integers(-(2**63), 2**64 - 1),
)


@given(
    st.builds(messages.BufferMessage, st.integers(0, 2**62), st.none() | texts, st.none() | st.binary())
    | st.builds(messages.BucketMessage, st.dictionaries(texts, entries), st.none() | st.lists(texts))
    | st.builds(messages.AbortMessage, texts)
    | st.builds(messages.ReplyMessage, st.none() | texts)
)
def test_messages_survive_encoding(message: messages.Message) -> None:
    content = messages.encode_message(message)[messages.PREFIX.size :]
    assert messages.decode_message(content, messages.Message) == message


@pytest.mark.parametrize(
    "content", [b"", b"\x93\x01\x02\x03", b"\x91\xa7Another", b"\x91\xa2\x00\x80", pickle.dumps({})]
)
def test_malformed_messages_are_refused(content: bytes) -> None:
    with pytest.raises(IncompleteUpdate, match="malformed message"):
        messages.decode_message(content, messages.Message)


def test_every_dtype_has_a_name() -> None:
    every = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    assert len(every) > 20 and all(messages.parse_dtype(messages.dtype_name(dtype)) is dtype for dtype in every)


@settings(max_examples=60)
@given(sizes=st.lists(st.integers(0, 50), max_size=12), limit=st.integers(1, 300), large=st.integers(1, 200))
def test_buckets_hold_every_tensor_once_in_order_within_the_limit(sizes: list[int], limit: int, large: int) -> None:
    weights = {f"w{number}": torch.arange(size, dtype=torch.int32) for number, size in enumerate(sizes)}
    received_names = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(buckets, "LARGE_BYTES", large)
        filler = buckets.BucketFiller(iter(weights.items()), limit)
        while (bucket := filler.fill()) is not None:
            message, parts = bucket
            content = torch.cat([torch.empty(0, dtype=torch.uint8), *parts])
            assert messages.bucket_size(message.entries) == content.numel()
            assert content.numel() <= limit or len(message.entries) == 1
            for name, tensor in unpack(content, message.entries, torch.device("cpu")):
                assert torch.equal(tensor, weights[name])
                received_names.append(name)
    assert received_names == list(weights) == message.last


def test_a_large_tensor_of_the_host_is_sent_from_where_it_is() -> None:
    large = torch.zeros(buckets.LARGE_BYTES // 4)
    every_other = torch.zeros(2, buckets.LARGE_BYTES // 4).t()  # not contiguous
    filled = buckets.BucketFiller(iter([("a", torch.zeros(1)), ("large", large), ("t", every_other)]), 64 << 20).fill()
    assert filled is not None
    before, its_own, after = filled[1]
    assert its_own.data_ptr() == large.data_ptr() and its_own.nbytes == large.nbytes
    assert before.untyped_storage().data_ptr() == after.untyped_storage().data_ptr() != every_other.data_ptr()
