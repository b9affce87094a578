"""Paged attention equals attention over each whole request, for any block size and chunking."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from verl_omni.platforms.cpu import paged_attention

HEAD = 4
SCALE = 0.3


@dataclass(frozen=True)
class Layout:
    """Requests in a cache whose blocks are assigned at random.

    Attributes:
        lengths: tokens of each request, [requests].
        chunks: number of tokens of each request in each step, [requests][steps].
    """

    chunks: list[list[int]]
    block_size: int
    kv_heads: int
    groups: int
    seed: int

    @property
    def lengths(self) -> list[int]:
        return [sum(own) for own in self.chunks]


layouts = st.builds(
    Layout,
    # One token is a decode, several are a prefill or a part of one.
    chunks=st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=5), min_size=1, max_size=4),
    block_size=st.integers(1, 5),
    kv_heads=st.integers(1, 3),
    groups=st.integers(1, 3),
    seed=st.integers(0, 99),
)


def attended(layout: Layout, query: list[Tensor], key: list[Tensor], value: list[Tensor]) -> list[Tensor]:
    """[tokens, heads, HEAD] of each request, step by step as an engine would, all requests of a step in one batch."""
    generator = torch.Generator().manual_seed(layout.seed)
    width = max(-(-length // layout.block_size) for length in layout.lengths)
    blocks = torch.randperm(len(layout.chunks) * width + 2, generator=generator, dtype=torch.int32)
    table = blocks[2:].view(len(layout.chunks), width)
    # Blocks hold arbitrary values at first.
    cache = torch.full((len(blocks), layout.block_size, layout.kv_heads, 2 * HEAD), 1e4)
    done = [0] * len(layout.chunks)
    made = [torch.empty(0)] * len(layout.chunks)
    for step in range(max(len(own) for own in layout.chunks)):
        rows = [row for row, own in enumerate(layout.chunks) if step < len(own)]
        spans = {row: slice(done[row], done[row] + layout.chunks[row][step]) for row in rows}
        counts = torch.tensor([layout.chunks[row][step] for row in rows])
        positions = torch.cat([torch.arange(span.start, span.stop) for span in spans.values()])
        owners = torch.repeat_interleave(torch.arange(len(rows)), counts)
        at = paged_attention.slot_indices(positions, owners, table[rows], layout.block_size)
        paged_attention.write(
            cache, *(torch.cat([each[row][span] for row, span in spans.items()]) for each in (key, value)), at
        )
        starts = [0, *counts.cumsum(0).tolist()]
        found = paged_attention.attend(
            torch.cat([query[row][span] for row, span in spans.items()]),
            cache,
            table[rows],
            starts,
            [span.stop for span in spans.values()],
            SCALE,
        )
        for row, part in zip(rows, found.split(counts.tolist()), strict=True):
            made[row] = torch.cat((made[row], part)) if done[row] else part
            done[row] = spans[row].stop
    return made


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_cache_may_have_a_16_bit_dtype(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(5, 1, HEAD, generator=generator).to(dtype) for _ in range(3))
    cache = torch.zeros(2, 4, 1, 2 * HEAD, dtype=dtype)
    table = torch.tensor([[1, 0]])
    at = paged_attention.slot_indices(torch.arange(5), torch.zeros(5, dtype=torch.int64), table, 4)
    paged_attention.write(cache, key, value, at)
    assert at.tolist() == [4, 5, 6, 7, 0]
    made = paged_attention.attend(query, cache, table, [0, 5], [5], SCALE)
    whole = scaled_dot_product_attention(
        *(each.transpose(0, 1).float() for each in (query, key, value)), is_causal=True, scale=SCALE
    )
    assert made.dtype == dtype
    torch.testing.assert_close(made.float(), whole.transpose(0, 1), atol=2e-2, rtol=2e-2)
