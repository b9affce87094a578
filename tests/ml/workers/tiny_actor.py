"""Settings of an actor of the tiny model. Files that run as ranks (`run_ranks`) do not find this module."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any


def model_settings(
    folder: Path, targets: Sequence[str], *, rank: int = 4, adapters: Sequence[str] = ("default",)
) -> Any:
    """What an actor reads of the settings of the model.

    Args:
        targets: layers with an adapter of this rank; with rank 0, all weights are trained.
        adapters: `policy_state_adapters`.
    """
    return SimpleNamespace(
        path=str(folder), architecture="StableDiffusion3Pipeline", lora_rank=rank, lora_alpha=8, lora_adapter_path=None,
        target_modules=list(targets), exclude_modules=None, lora_init_weights="gaussian",
        fsdp_layer_prefixes=["transformer_blocks."], policy_state_adapters=tuple(adapters), attn_backend="native",
        enable_gradient_checkpointing=False,
    )  # fmt: skip
