"""A linear layer with a LoRA adapter that computes its products in the cheaper order."""

from typing import Any

import torch
from peft import LoraConfig
from peft.tuners.lora import Linear
from torch import Tensor, nn
from typing_extensions import override


def use_cheaper_order(config: LoraConfig) -> None:
    """Let peft adapt linear layers with `OrderedLinear`; the names of weights and files stay."""
    config._register_custom_module({nn.Linear: OrderedLinear})


class OrderedLinear(Linear):  # type: ignore[misc]
    """peft's layer, for one adapter without dropout.

    peft computes `x W^T + s (x A^T) B^T`. On a CPU in float32, `x (W + s B A)^T` is used where it takes less work: the
    same function, with gradients that differ by rounding. In a lower precision the sum `W + s B A` would be rounded,
    and the engine computes the products apart.
    """

    @override
    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if self.disable_adapters or self.merged or args or kwargs:
            return super().forward(x, *args, **kwargs)
        (adapter,) = self.active_adapters
        down, up, base = self.lora_A[adapter].weight, self.lora_B[adapter].weight, self.base_layer
        if not (x.device.type == "cpu" and x.dtype == base.weight.dtype == down.dtype == torch.float32):
            return super().forward(x)
        if not is_sum_cheaper(x.numel() // x.shape[-1], base.weight.shape, down.shape[0]):
            return super().forward(x)
        return nn.functional.linear(x, torch.addmm(base.weight, up, down, alpha=self.scaling[adapter]), base.bias)


def is_sum_cheaper(rows: int, weight: tuple[int, int], rank: int) -> bool:
    """Whether forward and backward of a trained layer take fewer multiplications with `W + s B A`.

    Args:
        rows: of the input.
        weight: (outputs, inputs) of the frozen weight.
        rank: of the adapter.
    """
    outputs, inputs = weight
    # Apart: x A^T and its product with B; of their gradients, the two weights' and the two inputs'.
    apart = 3 * rows * rank * (outputs + inputs)
    # As a sum: the gradient of the whole weight; B A, and its gradients for B and A.
    return rows * outputs * inputs + 3 * rank * outputs * inputs < apart
