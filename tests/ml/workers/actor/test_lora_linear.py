"""The adapted layers of the trainer: peft's function and gradients, in the cheaper order of products."""

import copy
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from peft import LoraConfig, inject_adapter_in_model
from torch import Tensor, nn

from verl_omni.workers.actor import lora_linear

RANK = 4


def layer(**changes: Any) -> lora_linear.OrderedLinear:
    """A small layer whose adapter is not zero."""
    torch.manual_seed(0)
    config = LoraConfig(r=RANK, lora_alpha=8, target_modules=["0"], **changes)
    lora_linear.use_cheaper_order(config)
    model = nn.Sequential(nn.Linear(6, 10)).requires_grad_(False)
    inject_adapter_in_model(config, model, adapter_name="default")
    adapted: Any = model[0]
    nn.init.normal_(adapted.lora_B["default"].weight)
    return adapted  # type: ignore[no-any-return]


def peft_s(own: lora_linear.OrderedLinear) -> Any:
    """The same layer as peft computes it."""
    from peft.tuners.lora import Linear

    peft_layer = copy.deepcopy(own)
    peft_layer.__class__ = Linear  # type: ignore[assignment]
    return peft_layer


def counted(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """The decisions of later forward passes."""
    decisions: list[bool] = []
    decide = lora_linear.is_sum_cheaper

    def noting(*given: Any) -> bool:
        decisions.append(decide(*given))
        return decisions[-1]

    monkeypatch.setattr(lora_linear, "is_sum_cheaper", noting)
    return decisions


@pytest.mark.parametrize(("rows", "as_sum"), [(100, True), (1, False)])
def test_values_and_gradients_are_those_of_peft(monkeypatch: pytest.MonkeyPatch, rows: int, as_sum: bool) -> None:
    decisions = counted(monkeypatch)
    ordered = layer()
    x = torch.randn(2, rows, 6)

    def pass_through(made: Any) -> list[Tensor]:
        inputs = x.clone().requires_grad_()
        result = made(inputs)
        result.square().sum().backward()
        gradients = [part["default"].weight.grad for part in (made.lora_A, made.lora_B)]
        return [result.detach(), inputs.grad, *gradients]

    values, expected = pass_through(ordered), pass_through(peft_s(ordered))
    assert decisions == [as_sum]
    for mine, theirs in zip(values, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    assert float(expected[2].abs().max()) > 0


def test_without_the_adapter_it_is_the_frozen_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    decisions = counted(monkeypatch)
    ordered = layer()
    x = torch.randn(100, 6)
    adapted = ordered(x)
    ordered.enable_adapters(False)
    torch.testing.assert_close(ordered(x), ordered.base_layer(x))
    ordered.enable_adapters(True)
    assert torch.equal(ordered(x), adapted) and not torch.allclose(adapted, ordered.base_layer(x))
    assert decisions == [True, True]


def test_products_in_bfloat16_are_those_of_peft(monkeypatch: pytest.MonkeyPatch) -> None:
    decisions = counted(monkeypatch)
    ordered = layer().to(torch.bfloat16)
    x = torch.randn(100, 6, dtype=torch.bfloat16)
    assert torch.equal(ordered(x), peft_s(ordered)(x)) and decisions == []


@given(outputs=st.integers(1, 64), inputs=st.integers(1, 64), rank=st.integers(1, 32), rows=st.integers(1, 2000))
def test_the_sum_takes_fewer_multiplications_where_it_is_used(outputs: int, inputs: int, rank: int, rows: int) -> None:
    """Counted for each product: [a, b] times [b, c] takes a b c."""
    apart = sum(
        [
            rows * inputs * rank,  # x A^T
            rows * rank * outputs,  # (x A^T) B^T
            rows * rank * outputs,  # gradient of B
            rows * outputs * rank,  # gradient of x A^T
            rows * rank * inputs,  # gradient of A
            rows * rank * inputs,  # gradient of x
        ]
    )
    as_sum = sum(
        [
            outputs * rank * inputs,  # B A
            rows * outputs * inputs,  # gradient of W + s B A
            outputs * rank * inputs,  # gradient of B
            outputs * rank * inputs,  # gradient of A
        ]
    )
    assert lora_linear.is_sum_cheaper(rows, (outputs, inputs), rank) == (as_sum < apart)
