"""Language models on the CPU platform: supported attention and cache size."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]  # vLLM takes half a minute to import


def attention(**needs: Any) -> Any:
    from verl_omni.platforms.cpu.attention_backend import TorchAttention

    return TorchAttention(num_heads=4, head_size=8, scale=0.5, num_kv_heads=2, **needs)


@pytest.mark.parametrize(
    ("needs", "named"),
    [
        ({"sliding_window": 64}, "a sliding window"),
        ({"alibi_slopes": [0.1]}, "ALiBi"),
        ({"kv_cache_dtype": "fp8"}, "a cache of fp8"),
        ({"logits_soft_cap": 30.0}, "a soft cap"),
        ({"attn_type": "encoder_only"}, "encoder_only attention"),
        ({"sinks": torch.zeros(4)}, "attention sinks"),
        ({"kv_sharing_target_layer_name": "model.layers.0"}, "a cache shared between layers"),
    ],
)
def test_unsupported_attention_is_refused(needs: dict[str, Any], named: str) -> None:
    with pytest.raises(NotImplementedError, match=f"^unsupported attention: on a CPU, there is no {named}$"):
        attention(**needs)
    assert attention().scale == 0.5


@pytest.mark.parametrize("kind", ["use_mla", "use_sparse"])
def test_latent_and_sparse_attention_is_refused(kind: str) -> None:
    from verl_omni.platforms.cpu.vllm_platform import OutOfTreeCpuPlatform

    plain = {"use_mla": False, "use_sparse": False}
    with pytest.raises(NotImplementedError, match="latent"):
        OutOfTreeCpuPlatform.get_attn_backend_cls(None, SimpleNamespace(**plain | {kind: True}))
    named = OutOfTreeCpuPlatform.get_attn_backend_cls(None, SimpleNamespace(**plain))
    assert named == "verl_omni.platforms.cpu.attention_backend.TorchAttentionBackend"


def test_attention_that_is_not_causal_is_refused() -> None:
    from verl_omni.platforms.cpu.attention_backend import TorchAttentionMetadataBuilder

    builder: Any = object.__new__(TorchAttentionMetadataBuilder)
    with pytest.raises(NotImplementedError, match="causal"):
        builder.build(0, SimpleNamespace(causal=False))


@pytest.mark.parametrize(("free", "bytes_of_cache"), [(10**6, 3 * 4000), (20_000, 10_000)])
def test_the_cache_fits_the_requests_within_a_share_of_free_memory(
    free: int, bytes_of_cache: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from verl_omni.platforms.cpu import torch_worker

    layer = SimpleNamespace(max_memory_usage_bytes=lambda config: 2000)
    worker: Any = object.__new__(torch_worker.TorchWorker)
    worker.cache_config = SimpleNamespace(kv_cache_memory_bytes=None, gpu_memory_utilization=0.5)
    worker.scheduler_config = SimpleNamespace(max_num_seqs=3)
    worker.vllm_config = None
    worker.get_kv_cache_spec = lambda: {"layer 0": layer, "layer 1": layer}
    monkeypatch.setattr(torch_worker, "available_memory", lambda: (free, 10**9))
    assert worker.determine_available_memory() == bytes_of_cache
    worker.cache_config.kv_cache_memory_bytes = 7
    assert worker.determine_available_memory() == 7
