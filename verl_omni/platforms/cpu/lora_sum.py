"""The engine's LoRA layers on a CPU, with their products in the cheaper order."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm_omni.diffusion.lora.layers.base_linear import DiffusionBaseLinearLayerWithLoRA

from verl_omni.compat.versions import require

TESTED = frozenset({"0.30.0"})
apply_apart = DiffusionBaseLinearLayerWithLoRA.apply


def use_cheaper_order() -> None:
    """Let vLLM-Omni's LoRA layers compute with `apply`.

    Raises:
        PatchOutdated: this was not tested with the installed version of vllm-omni.
    """
    require("vllm-omni", TESTED, "use_cheaper_order")
    DiffusionBaseLinearLayerWithLoRA.apply = apply


def apply(layer: Any, x: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x (W + B A)^T` in float32 where that takes fewer multiplications, otherwise `x W^T + (x A^T) B^T`.

    Nothing is kept between two calls, so an update of the weights or of the adapter cannot leave an old sum behind.

    Args:
        layer: of vLLM-Omni; the adapter's scale is in its B.
        x: [..., inputs].

    Returns:
        [..., outputs].
    """
    base = layer.base_layer
    active = [index for index, is_active in enumerate(layer._diffusion_lora_active_slices) if is_active]
    is_exact = type(base.quant_method) is UnquantizedLinearMethod and x.dtype == base.weight.dtype == torch.float32
    if not active or not is_exact:
        return apply_apart(layer, x, bias)
    rows, (outputs, inputs) = x.numel() // x.shape[-1], base.weight.shape
    if outputs * inputs >= rows * (outputs + inputs):  # both times the rank
        return apply_apart(layer, x, bias)
    weight = base.weight.clone()
    slices = weight.split(list(layer.output_slices))
    for index in active:
        slices[index].addmm_(layer.lora_b_stacked[index][0, 0], layer.lora_a_stacked[index][0, 0])
    return linear(x, weight, bias)
