"""Text encoders of a rollout pipeline on a second device; run by `test_on_a_device.py`."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.ml.second_device.device import allocated, given_back
from verl_omni.pipelines.prompt_encoding import PromptEncoding

WIDTH = 3


class Encoder(nn.Module):
    """Two layers that share a weight, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)
        self.second.weight = self.first.weight
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        encoded: Tensor = self.second(self.first(x)) * self.scale
        return encoded


class Upstream(nn.Module):
    """A pipeline that loads one of its encoders to the device itself."""

    _encoder_modules = ("text_encoder", "text_encoder_2")

    def __init__(self, *, od_config: Any, prefix: str = "") -> None:
        super().__init__()
        self.device = od_config.device
        torch.manual_seed(1)
        self.text_encoder = Encoder()
        self.transformer = nn.Linear(WIDTH, WIDTH)
        self.text_encoder_2 = Encoder().to(self.device)


class Pipeline(PromptEncoding, Upstream):
    pass


def made(folder: Path, device: torch.device, **arguments: Any) -> Any:
    pipeline_args = {"prompt_cache_dir": str(folder / "cache"), **arguments}
    settings = SimpleNamespace(
        device=device, dtype=torch.float32, model=str(folder), custom_pipeline_args=pipeline_args
    )
    return Pipeline(od_config=settings).to(device)  # as the engine's loader does


def devices(module: nn.Module) -> set[str]:
    return {tensor.device.type for tensor in (*module.parameters(), *module.buffers())}


def encoder_bytes(pipeline: Any) -> int:
    """What the text encoders take, shared weights once."""
    encoders = (pipeline.text_encoder, pipeline.text_encoder_2)
    return sum(tensor.nbytes for encoder in encoders for tensor in (*encoder.parameters(), *encoder.buffers()))


def encode(
    pipeline: Any, prompts: list[list[int]], seen: list[set[str]], memory: Callable[[], None] = lambda: None
) -> Tensor:
    """Embeddings; `seen` gets the encoders' devices, and `memory` is called, while prompts are encoded."""

    def run(distinct: list[list[int]]) -> tuple[Tensor]:
        memory()
        seen.append(devices(pipeline.text_encoder) | devices(pipeline.text_encoder_2))
        x = torch.tensor(distinct, dtype=torch.float32).to(pipeline.device)
        return (pipeline.text_encoder_2(pipeline.text_encoder(x)),)

    with torch.inference_mode():
        encoded: Tensor = pipeline.encode_prompts(prompts, run, {})[0]
    return encoded


def test_offloaded_encoders_are_on_the_device_only_to_encode_what_is_not_cached(
    second: torch.device, tmp_path: Path
) -> None:
    plain = made(tmp_path, second, prompt_cache_dir=None)
    everywhere = list[set[str]]()
    expected = encode(plain, [[1, 2, 3], [4, 5, 6]], everywhere)
    assert everywhere == [{second.type}]

    pipeline = made(tmp_path, second, offload_text_encoders=True)
    weights = list(pipeline.parameters())
    assert devices(pipeline.transformer) == {second.type}
    assert devices(pipeline.text_encoder) == devices(pipeline.text_encoder_2) == {"cpu"}
    given_back.clear()
    seen = list[set[str]]()
    encoded = encode(pipeline, [[1, 2, 3], [4, 5, 6], [1, 2, 3]], seen)
    assert seen == [{second.type}] * 2 and encoded.device == second
    assert torch.allclose(encoded.cpu(), expected.cpu()[[0, 1, 0]])
    assert devices(pipeline.text_encoder) == devices(pipeline.text_encoder_2) == {"cpu"}
    assert all(parameter is before for parameter, before in zip(pipeline.parameters(), weights, strict=True))
    assert second.type == "cuda" or given_back == ["cache"], "the memory of the copies is given back once"
    again = encode(pipeline, [[4, 5, 6], [1, 2, 3]], seen)
    assert len(seen) == 2 and again.device == second and torch.equal(again.cpu(), encoded.cpu()[[1, 0]])


def test_offloaded_encoders_take_memory_of_the_device_only_while_they_encode(
    second: torch.device, tmp_path: Path
) -> None:
    before = allocated()
    plain = made(tmp_path, second, prompt_cache_dir=None)
    with_encoders = allocated() - before
    before = allocated()
    pipeline = made(tmp_path, second, offload_text_encoders=True)
    without_encoders = allocated() - before
    assert with_encoders - without_encoders >= encoder_bytes(plain) > 0  # CUDA's allocator rounds up
    encoding = list[int]()
    encode(pipeline, [[1, 2, 3]], [], lambda: encoding.append(allocated() - before))
    assert encoding == [with_encoders]
    assert allocated() - before == without_encoders


def test_encoders_return_to_cpu_memory_after_an_error(second: torch.device, tmp_path: Path) -> None:
    pipeline = made(tmp_path, second, offload_text_encoders=True)
    with pytest.raises(RuntimeError, match="shapes"):
        encode(pipeline, [[1, 2, 3], [4]], [])
    assert devices(pipeline.text_encoder) == devices(pipeline.text_encoder_2) == {"cpu"}


def test_an_accelerator_has_files_of_its_own(second: torch.device, tmp_path: Path) -> None:
    on_cpu = made(tmp_path, torch.device("cpu"), offload_text_encoders=True)
    on_device = made(tmp_path, second)
    assert on_cpu._prompt_cache.folder != on_device._prompt_cache.folder
    assert devices(on_device.text_encoder) == {second.type}, "without the setting they stay on the device"
    assert on_cpu._offloaded == (), "in CPU memory anyway"
