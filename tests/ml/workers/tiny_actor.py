"""Settings of an actor of the tiny model. Files that run as ranks (`run_ranks`) do not find this module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from verl_omni.workers.config import DiffusionOptimizerConfig


def smooth_steps(lr: float, **changes: Any) -> DiffusionOptimizerConfig:
    """An optimizer for tests that compare weights after its steps: AdamW whose steps are nearly proportional to the
    gradient.

    With the usual eps, a step has the size of the learning rate however small the gradient is. Where it is nearly 0,
    its rounding, which depends on processor and batch size, then decides the step.
    """
    return DiffusionOptimizerConfig(lr=lr, eps=1e-3, **changes)


def relative_difference(before: Mapping[str, Tensor], one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """Norm of the difference of two updates, relative to that of what the first one moved; the names must agree.

    After smooth steps rounding in float32 gives 1e-6 (random relative noise of 1e-7 after each linear layer), and what
    tests break gives 0.1 and more.
    """
    assert before.keys() == one.keys() == other.keys()
    moved = sum(float((tensor - before[name]).double().square().sum()) for name, tensor in one.items())
    differs = sum(float((tensor - other[name]).double().square().sum()) for name, tensor in one.items())
    assert moved > 0
    return float((differs / moved) ** 0.5)


def model_settings(
    folder: Path, targets: Sequence[str], *, rank: int = 4, adapters: Sequence[str] = ("default",)
) -> Any:
    """What an actor reads of the settings of the model.

    Args:
        targets: layers with an adapter of this rank; with rank 0, all weights are trained.
        adapters: `policy_state_adapters`.
    """
    return SimpleNamespace(
        path=str(folder),
        architecture="StableDiffusion3Pipeline",
        lora_rank=rank,
        lora_alpha=8,
        lora_adapter_path=None,
        target_modules=list(targets),
        exclude_modules=None,
        lora_init_weights="gaussian",
        fsdp_layer_prefixes=["transformer_blocks."],
        policy_state_adapters=tuple(adapters),
        attn_backend="native",
        enable_gradient_checkpointing=False,
    )
