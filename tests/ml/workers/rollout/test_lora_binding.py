"""LoRA layers of the engine: in all places that a layer has in the model."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytestmark = pytest.mark.slow  # it loads vLLM-Omni


class Wrapper(nn.Module):
    """Adds 1 to what its base layer computes."""

    def __init__(self, base_layer: nn.Module) -> None:
        super().__init__()
        self.base_layer = base_layer

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.base_layer(x) + 1
        return output


class Prepares(nn.Module):
    """Computes a layer of the whole model, as Qwen-Image's `ImageRopePrepare`."""

    def __init__(self, shared: nn.Module) -> None:
        super().__init__()
        self.shared = shared
        self.parts = nn.ModuleList([shared])

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.parts[0](self.shared(x))
        return output


def test_a_layer_that_two_modules_have_gets_its_adapter_in_both() -> None:
    from verl_omni.workers.rollout.vllm_rollout.engine_worker.lora_binding import share_layers

    transformer: Any = nn.Module()
    transformer.img_in = nn.Identity()
    transformer.other = nn.Identity()
    transformer.prepare = Prepares(transformer.img_in)
    transformer.img_in = wrapper = Wrapper(transformer.img_in)
    for _ in range(2):  # each update repeats it
        share_layers(SimpleNamespace(transformer=transformer), {"transformer.img_in": wrapper})
        assert transformer.prepare(torch.zeros(1)) == 2
        assert isinstance(wrapper.base_layer, nn.Identity) and isinstance(transformer.other, nn.Identity)
