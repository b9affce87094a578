"""LoRA requests with tensors, as vLLM-Omni's manager loads them."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.slow  # it loads vLLM-Omni

TARGETS = ["to_q", "to_out.0", "proj"]
NAMES = ["blocks.0.attn.to_q", "blocks.0.attn.to_out.0", "blocks.0.attn.to_out", "proj", "blocks.0.my_proj", "to_q.x"]


def request(scale: int = 1, targets: Any = TARGETS) -> Any:
    from verl_omni.utils.vllm_omni import VLLM_LORA_PATH, OmniTensorLoRARequest

    tensors = {f"blocks.0.attn.to_q.lora_{part}.weight": torch.ones(2, 2) for part in "AB"}
    return OmniTensorLoRARequest(
        lora_name="1", lora_int_id=1, lora_path=VLLM_LORA_PATH, lora_tensors=tensors,
        peft_config={"r": 2, "lora_alpha": 2 * scale, "target_modules": targets, "bias": "none"},
    )  # fmt: skip


def test_the_pattern_matches_the_same_modules_as_the_list() -> None:
    from vllm_omni.diffusion.lora.utils import _match_target_modules

    from verl_omni.utils.vllm_omni import load_tensor_adapter

    _, helper = load_tensor_adapter(request(), dtype=torch.float32)  # type: ignore[misc]
    found = [re.search(helper.target_modules, name) is not None for name in NAMES]
    assert found == [_match_target_modules(name, TARGETS) for name in NAMES]
    assert found == [True, True, False, True, False, False]


@pytest.mark.parametrize("targets", [".*to_q", []])
def test_a_pattern_or_missing_targets_are_unchanged(targets: Any) -> None:
    from verl_omni.utils.vllm_omni import load_tensor_adapter

    _, helper = load_tensor_adapter(request(targets=targets), dtype=torch.float32)  # type: ignore[misc]
    assert helper.target_modules == targets


def test_a_request_that_is_loaded_twice_is_scaled_once() -> None:
    from verl_omni.utils.vllm_omni import load_tensor_adapter

    asked = request(scale=3)
    for _ in range(2):
        model, _ = load_tensor_adapter(asked, dtype=torch.float32)  # type: ignore[misc]
        (layer,) = model.loras.values()
        layer.optimize()
        assert layer.lora_b.unique().tolist() == [3.0]
        assert layer.lora_a.unique().tolist() == [1.0]
