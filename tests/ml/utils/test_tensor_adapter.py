"""LoRA requests with tensors, as vLLM-Omni's manager loads them."""

import re
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.slow  # it loads vLLM-Omni

NAMES = [
    "blocks.0.attn.to_q",
    "transformer.blocks.0.attn.to_q",
    "blocks.0.attn.to_out.0",
    "blocks.10.attn.to_q",
    "proj",
    "blocks.0.attnxto_q",
    "blocks.0.attn.to_q.x",
    "to_q",
]


def request(scale: int = 1, targets: Any = None) -> Any:
    from verl_omni.utils.vllm_omni import VLLM_LORA_PATH, OmniTensorLoRARequest

    tensors = {f"blocks.0.attn.to_q.lora_{part}.weight": torch.ones(2, 2) for part in "AB"}
    return OmniTensorLoRARequest(
        lora_name="1",
        lora_int_id=1,
        lora_path=VLLM_LORA_PATH,
        lora_tensors=tensors,
        peft_config={"r": 2, "lora_alpha": 2 * scale, "target_modules": targets, "bias": "none"},
    )


@pytest.mark.parametrize(
    "targets", [["to_q", "proj"], ["q"], r"blocks\.0\..*", "^blocks", "all-linear", None, []], ids=str
)
def test_the_pattern_matches_the_modules_of_the_tensors_whatever_the_targets_are(targets: Any) -> None:
    """Targets are of the names that a checkpoint has, and peft reads `["q"]` and patterns in other ways."""
    from verl_omni.utils.vllm_omni import load_tensor_adapter

    _, helper = load_tensor_adapter(request(targets=targets), dtype=torch.float32)  # type: ignore[misc]
    matched = [name for name in NAMES if re.search(helper.target_modules, name)]
    assert matched == ["blocks.0.attn.to_q", "transformer.blocks.0.attn.to_q"]


def test_a_request_that_is_loaded_twice_is_scaled_once() -> None:
    from verl_omni.utils.vllm_omni import load_tensor_adapter

    asked = request(scale=3)
    for _ in range(2):
        model, _ = load_tensor_adapter(asked, dtype=torch.float32)  # type: ignore[misc]
        (layer,) = model.loras.values()
        layer.optimize()
        assert layer.lora_b.unique().tolist() == [3.0]
        assert layer.lora_a.unique().tolist() == [1.0]
