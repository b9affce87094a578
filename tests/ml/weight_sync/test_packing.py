"""Packing, digests, staging and names: values in, values out."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_omni.weight_sync import errors, names, transfer
from verl_omni.weight_sync.buffers import Begin
from verl_omni.weight_sync.digest import digest, mixed_sum
from verl_omni.weight_sync.errors import IncompleteUpdate
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
    """A receiver in the same thread: it copies each bucket out before it returns."""

    def __init__(self, buffer: HostBuffer) -> None:
        self.buffer, self.buckets, self.last = buffer, [], None
        self.staging = Staging()

    def __call__(self, message: Any) -> None:
        if isinstance(message, Begin):
            return
        assert self.last is None, "nothing may follow the last bucket"
        bucket = transfer._views(self.buffer.tensor, message.entries, torch.device("cpu"))
        self.staging.add(bucket)
        self.buckets.append([name for name, _ in bucket])
        self.last = message.last


@given(st.lists(st.tuples(st.integers(0, 40), st.sampled_from(DTYPES)), max_size=14), st.integers(1, 300))
@settings(max_examples=80, deadline=None)
def test_all_tensors_arrive_once_in_order_through_a_bounded_buffer(kinds: list[Any], limit: int) -> None:
    weights = [(f"t{i}", (torch.rand(n) * 100).to(dtype)) for i, (n, dtype) in enumerate(kinds)]
    buffer = HostBuffer()
    reader = Reader(buffer)
    packer = transfer.Packer(buffer, reader, limit)
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
    monkeypatch.setattr(transfer, "FIRST_BUFFER", 8)
    buffer = HostBuffer()
    packer = transfer.Packer(buffer, Reader(buffer), 100)
    for index in range(60):
        packer.put(f"t{index}", torch.ones(2))
    packer.finish()
    assert buffer.sizes == [8, 32, 100]


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
