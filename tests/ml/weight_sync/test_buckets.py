"""Buckets of a weight update over the network."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_omni.weight_sync import buckets, messages
from verl_omni.weight_sync.buckets import unpack


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
