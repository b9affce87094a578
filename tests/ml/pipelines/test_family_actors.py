"""A tiny model of each family in the trainer: layers, LoRA adapter, and the adapter's file in diffusers."""

import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft.tuners.lora import LoraLayer

from ml.workers.tiny_actor import model_settings
from verl_omni.models.tiny import MAKERS
from verl_omni.pipelines.registry import FAMILIES
from verl_omni.workers.actor import build, parallel
from verl_omni.workers.actor.actor import DiffusionActor
from verl_omni.workers.actor.precision import Precision
from verl_omni.workers.algorithms.flow_grpo import FlowGRPOLossConfig
from verl_omni.workers.config import DiffusionActorConfig

pytestmark = pytest.mark.slow

FLOAT32 = Precision(torch.float32, torch.float32)


@pytest.fixture(scope="module", params=sorted(FAMILIES.items()), ids=sorted(FAMILIES))
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, DiffusionActor]:
    architecture, family = request.param
    folder = tmp_path_factory.mktemp("model") / family.folder
    MAKERS[family.folder](folder)
    model = model_settings(folder, architecture=architecture)
    config = DiffusionActorConfig(diffusion_loss=FlowGRPOLossConfig(), ppo_mini_batch_size=2)
    return family.folder, folder, DiffusionActor(model, config, 1)


def test_the_adapter_constants_match_layers_of_the_transformer(made: tuple[str, Path, DiffusionActor]) -> None:
    _, _, actor = made
    layers = parallel.layer_names(actor.module, actor.policy.adapter.LAYERS)
    assert len(layers) == 2
    adapted = [name for name, layer in actor.module.named_modules() if isinstance(layer, LoraLayer)]
    assert len(dict(actor.weights("lora"))) == 2 * len(adapted)
    for target in actor.policy.adapter.LORA_TARGETS:
        assert any(name.endswith(f".{target}") for name in adapted)
    for layer in layers:
        assert any(name.startswith(f"{layer}.") for name in adapted)


def test_diffusers_loads_every_tensor_of_the_adapter(made: tuple[str, Path, DiffusionActor], tmp_path: Path) -> None:
    from diffusers import DiffusionPipeline

    _, folder, actor = made
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in actor.trained:
            parameter.normal_(0, 0.1, generator=generator)
    actor.save_adapter(tmp_path)
    pipeline = DiffusionPipeline.from_pretrained(folder)
    pipeline.load_lora_weights(tmp_path, adapter_name=build.ADAPTER)
    loaded = weight_changes(pipeline.transformer)
    trained = weight_changes(actor.module)
    assert loaded.keys() == trained.keys() and trained
    assert all(torch.equal(loaded[name], change) for name, change in trained.items())


def weight_changes(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """What the adapter adds to each weight, [out, in], by the layer's name."""
    layers = {name: layer for name, layer in module.named_modules() if isinstance(layer, LoraLayer)}
    return {name: layer.get_delta_weight(build.ADAPTER).detach() for name, layer in layers.items()}


@pytest.fixture
def math(made: tuple[str, Path, DiffusionActor]) -> Iterator[str]:
    """A kernel that every machine has; afterwards diffusers computes as before."""
    from diffusers.models.attention_dispatch import _AttentionBackendRegistry

    active, _ = _AttentionBackendRegistry.get_active_backend()
    yield "_native_math"
    made[2].module.reset_attention_backend()
    _AttentionBackendRegistry.set_active_backend(active)


def test_the_selected_attention_kernel_is_used(
    made: tuple[str, Path, DiffusionActor], math: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder, _, actor = made
    caplog.set_level(logging.WARNING, build.__name__)  # a library of vLLM's server raises the level of all loggers
    build.select_attention(actor.module, math)
    taken = {getattr(processor, "_attention_backend", None) for processor in actor.module.attn_processors.values()}
    assert taken == ({None} if folder == "sd3" else {math})
    assert caplog.text.count("has no effect: SD3Transformer2DModel") == (folder == "sd3")


def test_the_error_names_a_kernel_that_is_not_installed(tmp_path: Path) -> None:
    MAKERS["wan"](tmp_path)
    model: Any = SimpleNamespace(
        path=str(tmp_path), lora_rank=0, attn_backend="_native_npu", enable_gradient_checkpointing=False
    )
    with pytest.raises(ImportError, match=r"model\.attn_backend='_native_npu' cannot be used: .*install `torch_npu`"):
        build.load_transformer(model, precision=FLOAT32, seed=0)
