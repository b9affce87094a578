"""Paged attention in 16 bits equals attention over the whole request; engine/server/test_autoregressive: in float32."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from verl_omni.platforms.cpu import paged_attention

HEAD = 4
SCALE = 0.3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_cache_may_have_a_16_bit_dtype(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(5, 1, HEAD, generator=generator).to(dtype) for _ in range(3))
    cache = torch.zeros(2, 4, 1, 2 * HEAD, dtype=dtype)
    table = torch.tensor([[1, 0]])
    at = paged_attention.slot_indices(torch.arange(5), torch.zeros(5, dtype=torch.int64), table, 4)
    paged_attention.write(cache, key, value, at)
    assert at.tolist() == [4, 5, 6, 7, 0]
    attended = paged_attention.attend(query, cache, table, [0, 5], [5], SCALE)
    expected = scaled_dot_product_attention(
        *(tensor.transpose(0, 1).float() for tensor in (query, key, value)), is_causal=True, scale=SCALE
    )
    assert attended.dtype == dtype
    torch.testing.assert_close(attended.float(), expected.transpose(0, 1), atol=2e-2, rtol=2e-2)
