"""Settings of an actor of a tiny model, and the comparison of two updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from verl_omni.pipelines.registry import training_adapter
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
    folder: Path,
    targets: Sequence[str] | None = None,
    *,
    rank: int = 4,
    adapters: Sequence[str] = ("default",),
    architecture: str = "StableDiffusion3Pipeline",
    kernel: str = "native",
    checkpointing: bool = False,
) -> Any:
    """What an actor reads of the settings of the model.

    Args:
        targets: layers with an adapter of this rank; None: those of the family. With rank 0, all weights are trained.
        adapters: `policy_state_adapters`.
        kernel: `attn_backend`.
        checkpointing: `enable_gradient_checkpointing`.
    """
    family = training_adapter(architecture)
    return SimpleNamespace(
        path=str(folder),
        architecture=architecture,
        lora_rank=rank,
        lora_alpha=8,
        lora_adapter_path=None,
        target_modules=list(family.LORA_TARGETS if targets is None else targets),
        exclude_modules=None,
        lora_init_weights="gaussian",
        fsdp_layer_prefixes=list(family.LAYERS),
        policy_state_adapters=tuple(adapters),
        attn_backend=kernel,
        enable_gradient_checkpointing=checkpointing,
    )


def recorded_steps(rows: int, sigmas: Sequence[float]) -> dict[str, Tensor]:
    """Rows of samples of the tiny Stable Diffusion 3, with T recorded steps between T + 1 noise levels.

    Latents are float32 [rows, T + 1, 16, 8, 8], embeddings [rows, 8, 64] and [rows, 64], noise levels [rows, T + 1].
    """
    generator = torch.Generator().manual_seed(5)
    levels = torch.tensor(sigmas).expand(rows, len(sigmas))
    return {
        "all_latents": torch.randn(rows, len(sigmas), 16, 8, 8, generator=generator),
        "all_timesteps": levels[:, :-1] * 1000,
        "all_sigmas": levels,
        "sigma_max": torch.full((rows, 1), sigmas[0]),
        "prompt_embeds": torch.randn(rows, 8, 64, generator=generator),
        "pooled_prompt_embeds": torch.randn(rows, 64, generator=generator),
    }
