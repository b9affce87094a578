"""PURE: attention over a paged key-value cache, in torch: one call of `scaled_dot_product_attention` for each request.

The cache is [blocks, block_size, kv_heads, 2 * head_size]: keys in the first half of the last dimension, values in the
second. Slot s is row s % block_size of block s // block_size.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

PADDING = -1  # slot of a padding token, which is not stored


def slot_indices(positions: Tensor, owners: Tensor, block_table: Tensor, block_size: int) -> Tensor:
    """Slots of tokens in the cache.

    Args:
        positions: int64 [tokens], position of each token in its request.
        owners: int64 [tokens], row of `block_table` of each token's request.
        block_table: int [requests, blocks], a request's blocks in order.

    Returns:
        int64 [tokens].
    """
    blocks = block_table[owners, positions // block_size].to(torch.int64)
    return blocks * block_size + positions % block_size


def write(cache: Tensor, key: Tensor, value: Tensor, at: Tensor) -> None:
    """Store the keys and values of tokens.

    Args:
        key, value: [tokens, kv_heads, head_size].
        at: int64 [tokens], slots; tokens with `PADDING` are skipped.
    """
    kept = at >= 0
    flat = cache.view(-1, *cache.shape[2:])
    flat[at[kept]] = torch.cat((key[kept], value[kept]), dim=-1).to(cache.dtype)


def attend(
    query: Tensor, cache: Tensor, block_table: Tensor, starts: Sequence[int], lengths: Sequence[int], scale: float
) -> Tensor:
    """Causal attention of each request's new tokens to all of its tokens, whose keys and values are in the cache.

    Args:
        query: [tokens, heads, head_size], one request after the other. Groups of heads share a head of the cache
            (grouped-query attention, arXiv:2305.13245).
        block_table: int [requests, blocks].
        starts: index of each request's first token in `query`, and the number of tokens.
        lengths: number of tokens of each request, including the new ones.
        scale: factor of the products of queries and keys.

    Returns:
        [tokens, heads, head_size].
    """
    block_size = cache.shape[1]
    output = torch.empty_like(query)
    for row, (first, end, length) in enumerate(zip(starts, starts[1:], lengths, strict=False)):
        blocks = block_table[row, : -(-length // block_size)].to(torch.int64)
        key, value = cache[blocks].flatten(0, 1)[:length].to(query.dtype).transpose(0, 1).chunk(2, dim=-1)
        new = end - first
        mask = torch.ones(new, length, dtype=torch.bool).tril(length - new)
        output[first:end] = scaled_dot_product_attention(
            query[first:end].transpose(0, 1), key, value, attn_mask=mask, scale=scale, enable_gqa=True
        ).transpose(0, 1)
    return output
