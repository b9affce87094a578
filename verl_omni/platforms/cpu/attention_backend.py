"""vLLM attention backend for language models on a CPU, in torch: vLLM's CUDA build has no CPU kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionImpl,
    AttentionMetadataBuilder,
    AttentionType,
    CommonAttentionMetadata,
)
from vllm.v1.kv_cache_layout import KVCacheLayout

from verl_omni.platforms.cpu import paged_attention


class TorchAttentionBackend(AttentionBackend):
    """Causal grouped-query attention over a paged cache; models that need anything else are refused."""

    forward_includes_kv_cache_update = True

    @staticmethod
    @override
    def get_name() -> str:
        """vLLM accepts only names of a fixed list (vllm/model_executor/layers/attention/attention.py)."""
        return "CUSTOM"

    @staticmethod
    @override
    def get_impl_cls() -> type[TorchAttention]:
        return TorchAttention

    @staticmethod
    @override
    def get_builder_cls() -> type[TorchAttentionMetadataBuilder]:
        return TorchAttentionMetadataBuilder

    @classmethod
    @override
    def supported_kv_cache_layouts(cls) -> tuple[KVCacheLayout, ...]:
        """Tokens of a block before their heads, as in `paged_attention`."""
        return (KVCacheLayout.LBNHC,)


@dataclass(frozen=True, slots=True)
class TorchAttentionMetadata:
    """Metadata of one batch of requests, for `paged_attention`.

    Attributes:
        starts: index of each request's first token, and the number of tokens.
        lengths: number of tokens of each request, including the new ones.
        block_table: int32 [requests, blocks].
        slot_mapping: int64 [tokens].
    """

    starts: list[int]
    lengths: list[int]
    block_table: Tensor
    slot_mapping: Tensor


class TorchAttentionMetadataBuilder(AttentionMetadataBuilder[TorchAttentionMetadata]):
    """Builds the metadata of a batch."""

    @override
    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    @override
    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
    ) -> TorchAttentionMetadata:
        """Raises NotImplementedError for attention that is not causal."""
        if common_attn_metadata.causal is not True:
            raise NotImplementedError("unsupported attention: on a CPU, only causal attention is implemented")
        requests = common_attn_metadata.num_reqs
        tokens = common_attn_metadata.num_actual_tokens
        return TorchAttentionMetadata(
            starts=common_attn_metadata.query_start_loc_cpu[: requests + 1].tolist(),
            lengths=common_attn_metadata.seq_lens[:requests].tolist(),
            block_table=common_attn_metadata.block_table_tensor[:requests],
            slot_mapping=common_attn_metadata.slot_mapping[:tokens],
        )


class TorchAttention(AttentionImpl[TorchAttentionMetadata]):
    """Attention of one layer."""

    @override
    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        sinks: Tensor | None = None,
    ) -> None:
        """Raises NotImplementedError for a model that needs another kind of attention."""
        features = {
            "ALiBi": alibi_slopes is not None,
            "a sliding window": sliding_window is not None,
            f"a cache of {kv_cache_dtype}": kv_cache_dtype != "auto",
            "a soft cap": bool(logits_soft_cap),
            f"{attn_type} attention": attn_type != AttentionType.DECODER,
            "a cache shared between layers": kv_sharing_target_layer_name is not None,
            "attention sinks": sinks is not None,
        }
        if missing := [name for name, needed in features.items() if needed]:
            raise NotImplementedError(f"unsupported attention: on a CPU, there is no {', no '.join(missing)}")
        self.scale = scale

    @override
    def forward(
        self,
        layer: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: TorchAttentionMetadata | None,
        output: Tensor,
        output_scale: Tensor | None = None,
        output_block_scale: Tensor | None = None,
    ) -> Tensor:
        """Compute attention and store the new keys and values.

        Args:
            query: [tokens, heads, head_size]; padding may follow the batch's last token.
            key, value: [tokens, kv_heads, head_size].
            kv_cache: [blocks, kv_heads, block_size, 2 * head_size].
            attn_metadata: None while vLLM profiles the model; nothing is computed then.
            output: written in place, same size as the query.
        """
        if attn_metadata is None:
            return output.fill_(0)
        tokens = attn_metadata.starts[-1]
        cache = kv_cache.transpose(1, 2)
        paged_attention.write(cache, key[:tokens], value[:tokens], attn_metadata.slot_mapping)
        output.view_as(query)[:tokens] = paged_attention.attend(
            query[:tokens], cache, attn_metadata.block_table, attn_metadata.starts, attn_metadata.lengths, self.scale
        )
        return output
