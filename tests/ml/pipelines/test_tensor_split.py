"""Tensor parallel sizes that are refused are those with which vLLM-Omni cannot divide the transformer."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.ml import smallest_job
from verl_omni.trainer.settings import tensor_split

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]  # the engine's modules take half a minute to import

HEADS = 6
SIZES = range(1, 14)
SMALL = {"num_attention_heads": HEADS, "attention_head_dim": 8, "in_channels": 4, "out_channels": 4, "num_layers": 1}
SD3 = {
    **SMALL,
    "sample_size": 8,
    "patch_size": 2,
    "joint_attention_dim": 12,
    "caption_projection_dim": 8 * HEADS,
    "pooled_projection_dim": 8,
    "pos_embed_max_size": 8,
    "dual_attention_layers": [0],
    "qk_norm": "rms_norm",
}
QWEN = {**SMALL, "joint_attention_dim": 12, "patch_size": 2, "axes_dims_rope": [2, 2, 4]}
WAN = {**SMALL, "patch_size": [1, 2, 2], "text_dim": 12, "freq_dim": 16, "cross_attn_norm": True}
CASES = {
    "StableDiffusion3Pipeline": ("StableDiffusion3Pipeline", SD3),
    "QwenImagePipeline": ("QwenImagePipeline", QWEN),
    "QwenImageEditPlusPipeline": ("QwenImageEditPlusPipeline", QWEN),
    "Wan, feed-forward layers of the same divisors": ("WanPipeline", {**WAN, "ffn_dim": 96}),
    "Wan, feed-forward layers of other divisors": ("WanPipeline", {**WAN, "ffn_dim": 32}),
}


@dataclass(frozen=True, slots=True)
class OneOf:
    """The first process of a group of the engine."""

    world_size: int
    rank_in_group: int = 0
    rank: int = 0
    is_first_rank: bool = True
    is_last_rank: bool = True
    ulysses_world_size: int = 1
    ring_world_size: int = 1


def build_sd3(transformer: dict[str, Any]) -> None:
    from vllm_omni.diffusion.models.sd3.sd3_transformer import SD3Transformer2DModel

    engine = SimpleNamespace(tf_model_config=SimpleNamespace(**transformer), parallel_config=None)
    SD3Transformer2DModel(od_config=engine)


def build_qwen(transformer: dict[str, Any]) -> None:
    from vllm_omni.diffusion.models.qwen_image.qwen_image_transformer import QwenImageTransformer2DModel

    QwenImageTransformer2DModel(od_config=SimpleNamespace(parallel_config=None), **transformer)


def build_wan(transformer: dict[str, Any]) -> None:
    from vllm_omni.diffusion.models.wan2_2.pipeline_wan2_2 import create_transformer_from_config

    create_transformer_from_config(transformer)


BUILD: dict[str, Callable[[dict[str, Any]], None]] = {
    "StableDiffusion3Pipeline": build_sd3,
    "QwenImagePipeline": build_qwen,
    "QwenImageEditPlusPipeline": build_qwen,
    "WanPipeline": build_wan,
}


@pytest.mark.parametrize("case", CASES)
def test_the_sizes_that_are_accepted_are_those_with_which_the_engine_builds_the_transformer(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.distributed import parallel_state
    from vllm_omni.diffusion.distributed import parallel_state as omni_state

    architecture, transformer = CASES[case]
    folder = tmp_path / "transformer"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(transformer))

    def accepted(size: int) -> bool:
        config = smallest_job.load(
            f"actor_rollout_ref.model.path='{tmp_path}'",
            f"actor_rollout_ref.model.architecture={architecture}",
            f"{tensor_split.TENSOR_PARALLEL}={size}",
        )
        try:
            tensor_split.check(config)
        except ValueError:
            return False
        return True

    def built(size: int) -> bool:
        monkeypatch.setattr(parallel_state, "_TP", OneOf(size))
        with set_current_vllm_config(VllmConfig()), torch.device("meta"):
            try:
                BUILD[architecture](transformer)
            except (AssertionError, ValueError) as error:
                assert "divisible" in str(error), error
                return False
        return True

    for module, group in ((parallel_state, "_PP"), (omni_state, "_PP"), (omni_state, "_SP")):
        monkeypatch.setattr(module, group, OneOf(1))
    built_sizes = [size for size in SIZES if built(size)]
    assert [size for size in SIZES if accepted(size)] == built_sizes
    assert built_sizes == ([1, 2] if transformer.get("ffn_dim") == 32 else [1, 2, 3, 6])
