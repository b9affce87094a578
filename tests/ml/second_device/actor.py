"""The actor on a second device; run by `test_on_a_device.py`, in its own process.

The assertions hold for any device: tensors of device and CPU are never mixed, results equal the CPU's, and offloaded
tensors are in CPU memory.
"""

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.ml.second_device import device
from tests.ml.workers.actor import test_actor as grpo
from tests.ml.workers.algorithms import test_objectives as others
from tests.ml.workers.tiny_actor import SAMPLER, weights_of
from verl_omni.pipelines.registry import FAMILIES, training_adapter
from verl_omni.pipelines.sample_shapes import read_configs, sample_shapes
from verl_omni.pipelines.sd3.tiny_model import make_tiny_sd3
from verl_omni.workers.actor import build
from verl_omni.workers.actor.actor import DiffusionActor
from verl_omni.workers.actor.precision import Precision
from verl_omni.workers.config import DiffusionFSDPConfig

HOST = torch.device("cpu")
OFFLOADED = DiffusionFSDPConfig(param_offload=True, optimizer_offload=True)
Updates = Callable[[DiffusionActor], list[dict[str, float]]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny"
    make_tiny_sd3(path)
    return path


def by_grpo(actor: DiffusionActor) -> list[dict[str, float]]:
    data = grpo.batch(actor)
    return [actor.update(data, **SAMPLER) for _ in range(3)]


ALGORITHMS: dict[str, tuple[Any, dict[str, Any], Updates]] = {
    "flow_grpo": (grpo.make, {"shuffle": True, "ppo_micro_batch_size_per_gpu": 2}, by_grpo),
    "flow_grpo with a KL": (grpo.make, {"use_kl_loss": True, "kl_loss_coef": 1.0}, by_grpo),
    "flow_grpo of all weights": (grpo.make, {"rank": 0}, by_grpo),
    "diffusion_nft": (
        others.make,
        {"adapters": others.BOTH, "diffusion_loss": others.NFT},
        lambda actor: [actor.update(others.judged(), step=step) for step in (1, 2, 3)],
    ),
    "diffusion_dpo": (
        others.make,
        {"diffusion_loss": others.DPO},
        lambda actor: [actor.update(others.compared()) for _ in range(3)],
    ),
}


def published(actor: DiffusionActor) -> dict[str, torch.Tensor]:
    """Weights as sent to the engine."""
    return weights_of(actor, "old" if actor.policy.old is not None else "default")


def test_mixing_devices_is_refused(second: torch.device) -> None:
    """Without this, the tests below would prove nothing."""
    with pytest.raises(RuntimeError, match="to be on the same device"):
        torch.ones(2, device=second) + torch.ones(2)
    with pytest.raises(RuntimeError, match="to be on the same device"):
        torch.nn.functional.linear(torch.ones(2, 2), torch.ones(2, 2, device=second))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_training_on_the_device_equals_training_on_the_cpu(second: torch.device, folder: Path, algorithm: str) -> None:
    make, settings, updates = ALGORITHMS[algorithm]
    host = make(folder, **settings)
    there = make(folder, device=second, **settings)
    assert {parameter.device for parameter in there.module.parameters()} == {second}
    for metrics, expected in zip(updates(there), updates(host), strict=True):
        assert metrics == pytest.approx(expected, rel=1e-3, abs=1e-6)
    here = published(host)
    assert all(torch.allclose(tensor, here[name], atol=1e-4) for name, tensor in published(there).items())


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_offload_does_not_change_the_result(second: torch.device, folder: Path, algorithm: str) -> None:
    make, settings, updates = ALGORITHMS[algorithm]
    gc.collect()
    before = device.allocated()
    resting = make(folder, device=second, fsdp_config=OFFLOADED, **settings)
    assert device.allocated() == before
    updated = updates(resting)
    gc.collect()
    assert device.allocated() == before, "an update leaves nothing on the device"
    staying = make(folder, device=second, **settings)
    assert updated == updates(staying)
    assert device.allocated() > before
    there = published(staying)
    assert all(torch.equal(tensor, there[name]) for name, tensor in published(resting).items())


def test_weights_are_offloaded_after_a_partial_read(second: torch.device, folder: Path) -> None:
    gc.collect()
    before = device.allocated()
    sent = grpo.make(folder, device=second, fsdp_config=OFFLOADED).weights("lora")
    _, taken = next(sent)
    assert taken.device == second and device.allocated() > before
    del taken
    sent.close()
    assert device.allocated() == before


def test_weights_and_optimizer_state_can_be_offloaded_separately(second: torch.device, folder: Path) -> None:
    weights = grpo.make(folder, device=second, fsdp_config=DiffusionFSDPConfig(param_offload=True))
    states = grpo.make(folder, device=second, fsdp_config=DiffusionFSDPConfig(optimizer_offload=True))
    for actor in (weights, states):
        by_grpo(actor)
    where = [
        {tensor.device for tensor in actor.module.parameters()}
        | {"states"}
        | {value.device for state in actor.optimizer.state.values() for value in state.values() if value.ndim}
        for actor in (weights, states)
    ]
    assert where == [{HOST, "states", second}, {second, "states", HOST}]


@pytest.mark.parametrize("settings", [{}, {"fsdp_config": OFFLOADED}], ids=["stays", "rests"])
def test_a_checkpoint_resumes_bit_exactly(
    second: torch.device, folder: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    saved = grpo.make(folder, device=second, **settings)
    data = grpo.batch(saved)
    saved.update(data, **SAMPLER)
    saved.save(tmp_path / "state")
    saved.save_adapter(tmp_path / "lora")
    assert (tmp_path / "lora" / "pytorch_lora_weights.safetensors").is_file()
    expected = [saved.update(data, **SAMPLER) for _ in range(2)]
    resumed = grpo.make(folder, device=second, **settings)
    resumed.load(tmp_path / "state")
    assert [resumed.update(data, **SAMPLER) for _ in range(2)] == expected


@pytest.mark.parametrize("architecture", sorted(FAMILIES))
def test_each_family_predicts_the_same(second: torch.device, tmp_path: Path, architecture: str) -> None:
    from types import SimpleNamespace

    from verl_omni.models.tiny import MAKERS

    MAKERS[FAMILIES[architecture].folder](tmp_path)
    pipeline = SimpleNamespace(height=32, width=32, num_frames=1)
    configs = {**read_configs(tmp_path), "processor": {"max_pixels": 32 * 32}}  # of input images
    generator = torch.Generator().manual_seed(0)
    rows = {}
    for name, shape in sample_shapes(architecture).sample(configs, pipeline, prompt_rows=8).items():
        if not shape.is_meta:
            rows[name] = shape.expand(2, *shape.shape)
        elif shape.is_floating_point():
            rows[name] = torch.randn(2, *shape.shape, generator=generator)
        else:
            rows[name] = torch.ones(2, *shape.shape, dtype=shape.dtype)
    x = rows.pop("latents")
    timestep = torch.full((2,), 500.0)
    module = build.load_transformer(
        SimpleNamespace(path=str(tmp_path), lora_rank=0, attn_backend="native", enable_gradient_checkpointing=False),
        precision=Precision(torch.float32, torch.float32),
        seed=0,
    )
    velocity = training_adapter(architecture).velocity
    with torch.no_grad():
        expected = velocity(module, rows, x, timestep, 3.0, dtype=torch.float32)
        there = {name: tensor.to(second) for name, tensor in rows.items()}
        computed = velocity(module.to(second), there, x.to(second), timestep.to(second), 3.0, dtype=torch.float32)
    assert computed.device == second
    assert torch.allclose(computed.cpu(), expected, atol=1e-4)
