"""The engine's LoRA layers on a CPU: vLLM-Omni's function, in the cheaper order of products."""

from typing import Any

import pytest
import torch
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm_omni.diffusion.lora.layers.base_linear import DiffusionBaseLinearLayerWithLoRA

from verl_omni.platforms.cpu import lora_sum

SLICES = (8, 8, 4)
INPUTS, RANK = 6, 3


class Unquantized(UnquantizedLinearMethod):
    """A linear layer as vLLM computes it on a CPU."""

    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return torch.nn.functional.linear(x, layer.weight, bias)


def layer(active: tuple[bool, ...], dtype: torch.dtype = torch.float32, method: Any = None) -> Any:
    """A fused layer whose slices have adapters, of which some are active."""
    torch.manual_seed(0)
    fused = object.__new__(DiffusionBaseLinearLayerWithLoRA)
    torch.nn.Module.__init__(fused)
    quant_method = method or object.__new__(UnquantizedLinearMethod)
    quant_method_apply = Unquantized.apply
    fused.base_layer = torch.nn.Module()
    fused.base_layer.weight = torch.nn.Parameter(torch.randn(sum(SLICES), INPUTS, dtype=dtype), requires_grad=False)
    quant_method.apply = lambda *given: quant_method_apply(quant_method, *given)
    fused.base_layer.quant_method = quant_method
    fused.lora_a_stacked = tuple(torch.randn(1, 1, RANK, INPUTS, dtype=dtype) for _ in SLICES)
    fused.lora_b_stacked = tuple(torch.randn(1, 1, size, RANK, dtype=dtype) for size in SLICES)
    fused.output_slices = SLICES
    fused._diffusion_lora_active_slices = active
    return fused


@pytest.fixture
def sums(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of the products that are computed as sums."""
    row_counts: list[int] = []
    linear = torch.nn.functional.linear

    def noting(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        row_counts.append(x.shape[0] * x.shape[1])
        return linear(x, weight, bias)

    monkeypatch.setattr(lora_sum, "linear", noting)
    return row_counts


@pytest.mark.parametrize("active", [(True, True, False), (False, False, True), (True, True, True)])
@pytest.mark.parametrize(("rows", "as_sum"), [(50, True), (1, False)])
@torch.inference_mode()
def test_the_products_are_those_of_vllm_omni(
    sums: list[int], active: tuple[bool, ...], rows: int, as_sum: bool
) -> None:
    fused = layer(active)
    x, bias = torch.randn(2, rows, INPUTS), torch.randn(sum(SLICES))
    weight = fused.base_layer.weight.clone()
    expected = lora_sum.apply_apart(fused, x, bias)
    torch.testing.assert_close(lora_sum.apply(fused, x, bias), expected, rtol=1e-5, atol=1e-5)
    assert sums == ([2 * rows] if as_sum else [])
    assert torch.equal(fused.base_layer.weight, weight)
    assert not torch.allclose(expected, torch.nn.functional.linear(x, weight, bias))


@torch.inference_mode()
def test_nothing_is_kept_of_an_adapter_or_of_weights_that_are_replaced(sums: list[int]) -> None:
    fused = layer((True, True, True))
    x = torch.randn(2, 50, INPUTS)
    lora_sum.apply(fused, x)
    for tensor in (fused.base_layer.weight.data, fused.lora_a_stacked[0], fused.lora_b_stacked[2]):
        tensor.copy_(torch.randn_like(tensor))
        torch.testing.assert_close(lora_sum.apply(fused, x), lora_sum.apply_apart(fused, x), rtol=1e-5, atol=1e-5)
    fused._diffusion_lora_active_slices = (False, False, False)
    assert torch.equal(lora_sum.apply(fused, x), torch.nn.functional.linear(x, fused.base_layer.weight))
    assert len(sums) == 4


@torch.inference_mode()
def test_lower_precision_and_quantized_weights_are_left_to_vllm_omni(sums: list[int]) -> None:
    x = torch.randn(2, 50, INPUTS)
    half = layer((True, True, True), torch.bfloat16)
    assert torch.equal(lora_sum.apply(half, x.bfloat16()), lora_sum.apply_apart(half, x.bfloat16()))
    quantized = layer((True, True, True), method=object.__new__(Unquantized))
    assert torch.equal(lora_sum.apply(quantized, x), lora_sum.apply_apart(quantized, x))
    assert sums == []


def test_layers_of_the_engine_compute_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DiffusionBaseLinearLayerWithLoRA, "apply", DiffusionBaseLinearLayerWithLoRA.apply)
    lora_sum.use_cheaper_order()
    assert DiffusionBaseLinearLayerWithLoRA.apply is lora_sum.apply
