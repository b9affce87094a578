"""FLOPs of the trained model: an analytic count, and what does not count."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from verl.utils import flops_counter

from ml.workers.tiny_actor import LargestTensor, model_settings
from verl_omni.workers.actor import build, device_flops
from verl_omni.workers.actor.model_flops import FLOAT32, ModelFlops

# tokens: patches of 2 x 2 of latents of 8 x 8; embeddings of a prompt
ROWS = 2
IMAGE = 16
TEXT = 8
TARGETS = ["attn.to_q", "attn.to_v", "ff.net.2"]
INPUTS = ("pos_embed", "context_embedder", "timestep_embedder.linear_1", "text_embedder.linear_1")


def watched(folder: Path, rank: int, *, checkpointing: bool = False) -> tuple[nn.Module, ModelFlops]:
    settings = model_settings(folder, TARGETS, rank=rank)
    settings.enable_gradient_checkpointing = checkpointing
    module = build.load_transformer(settings, precision=FLOAT32, seed=0)
    flops = ModelFlops(settings)
    flops.watch(module)
    return module, flops


def run(module: Any, rows: int = ROWS) -> Tensor:
    velocity: Tensor = module(
        hidden_states=torch.randn(rows, 16, 8, 8),
        encoder_hidden_states=torch.randn(rows, TEXT, 64),
        pooled_projections=torch.randn(rows, 64),
        timestep=torch.full((rows,), 500.0),
        return_dict=False,
    )[0]
    return velocity


def tokens(name: str) -> int:
    """Tokens that a linear layer of SD3 is applied to, for each row."""
    if "norm" in name or "time_text_embed" in name:
        return 1
    return TEXT if "context" in name or ".add_" in name or "to_add_out" in name else IMAGE


def analytic(module: Any) -> tuple[int, int]:
    """FLOPs of a forward pass of a row; and of its part whose inputs need no gradient."""
    weights = {n: m for n, m in module.named_modules() if isinstance(m, (nn.Linear, nn.Conv2d))}
    matrices = {n: 2 * m.weight.numel() * tokens(n) for n, m in weights.items()}
    width = module.config.num_attention_heads * module.config.attention_head_dim
    attention = 4 * (IMAGE + TEXT) ** 2 * width * module.config.num_layers
    return sum(matrices.values()) + attention, sum(f for n, f in matrices.items() if any(i in n for i in INPUTS))


@pytest.mark.parametrize("rank", [0, 4])
def test_a_forward_pass_has_the_analytic_count(model_folder: Path, rank: int) -> None:
    module, flops = watched(model_folder, rank)
    with torch.no_grad():
        run(module)
        run(module, rows=1)
    assert flops.take() == (ROWS + 1) * analytic(module)[0]
    assert flops.take() == 0, "counted once"


def test_training_all_weights_takes_three_times_as_much(model_folder: Path) -> None:
    """Twice for the backward pass: gradients of weights and of inputs, which the model's own inputs need none of."""
    module, flops = watched(model_folder, 0)
    run(module)
    forward, inputs = analytic(module)
    assert flops.take() == ROWS * (3 * forward - inputs)


def test_frozen_weights_get_no_gradients(model_folder: Path) -> None:
    module, flops = watched(model_folder, 4)
    run(module)
    assert 2 * analytic(module)[0] * ROWS > flops.take() > analytic(module)[0] * ROWS


def test_recomputation_and_random_numbers_do_not_count(model_folder: Path) -> None:
    counts = []
    for checkpointing in (False, True):
        module, flops = watched(model_folder, 4, checkpointing=checkpointing)
        run(module).sum().backward()
        before = torch.get_rng_state()
        counts.append(flops.take())
        assert torch.equal(torch.get_rng_state(), before), "counting draws nothing"
    assert counts[0] == counts[1]


def test_counting_takes_no_memory_and_one_pass_counts_also_without_gradients(model_folder: Path) -> None:
    """The position embeddings of SD3.5 medium are computed in 3.4 GiB, as long as the rest of the count takes."""
    module, flops = watched(model_folder, 4)
    embeddings = module.pos_embed.pos_embed.nbytes
    with torch.no_grad():
        run(module)
    run(module)
    with LargestTensor() as both:
        flops.take()
    assert both.bytes < embeddings / 2
    second_module, alone = watched(model_folder, 4)
    run(second_module)
    with LargestTensor() as single:
        alone.take()
    assert both.products == single.products > 0


def test_an_accelerator_has_a_utilisation_and_a_cpu_has_none() -> None:
    assert device_flops.utilisation(989e12, 2.0, "NVIDIA H100 80GB HBM3") == {
        "perf/flops/actor": 989e12,
        "perf/mfu/actor": 0.5,
    }
    assert device_flops.utilisation(989e12, 2.0, "cpu") == {"perf/flops/actor": 989e12}
    assert device_flops.utilisation(None, 2.0, "NVIDIA H100 80GB HBM3") == {}
    assert device_flops.peak_flops("NVIDIA H100 PCIe") == 756e12


@pytest.mark.parametrize("device", ["NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA A100-SXM4-40GB", "Ascend910B2"])
def test_peaks_are_those_of_verl(device: str) -> None:
    assert device_flops.peak_flops(device) == flops_counter.get_device_flops("B", device)


def test_a_model_that_only_its_own_loader_supports_is_not_counted(model_folder: Path, tmp_path: Path) -> None:
    config = json.loads((model_folder / "transformer" / "config.json").read_text())
    (tmp_path / "transformer").mkdir()
    (tmp_path / "transformer" / "config.json").write_text(json.dumps({**config, "_class_name": "Other"}))
    module, _ = watched(model_folder, 4)
    flops = ModelFlops(model_settings(tmp_path, TARGETS))
    flops.watch(module)
    run(module)
    assert flops.take() is None
