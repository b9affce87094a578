"""Model construction: load the transformer, add the LoRA adapter, shard with FSDP2."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

ADAPTER = "default"

logger = logging.getLogger(__name__)


def load_transformer(model: Any, *, dtype: torch.dtype, seed: int) -> nn.Module:
    """Load the transformer in `dtype`, with a new LoRA adapter when `model.lora_rank` is positive.

    The initial values of the adapter depend on `seed` alone, so they are the same on every rank.

    Args:
        model: `DiffusionModelConfig`.

    Raises:
        ValueError: `lora_rank` is positive and `target_modules` is empty or matches no layer.
        ImportError: the package of `model.attn_backend` is not installed.
    """
    from diffusers import AutoModel

    made: nn.Module = AutoModel.from_pretrained(str(Path(model.path)), subfolder="transformer", torch_dtype=dtype)
    if model.attn_backend != "native":  # diffusers' default
        select_attention(made, model.attn_backend)
    if model.lora_rank <= 0:
        made.requires_grad_(True)
        return made
    from peft import LoraConfig

    if not model.target_modules:
        raise ValueError("model.lora_rank is positive but model.target_modules is empty")
    made.requires_grad_(False)
    targets = model.target_modules
    config = LoraConfig(
        r=model.lora_rank,
        lora_alpha=model.lora_alpha,
        target_modules=targets if isinstance(targets, str) else list(targets),
        exclude_modules=model.exclude_modules,
        init_lora_weights=model.lora_init_weights,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made.add_adapter(config, adapter_name=ADAPTER)  # type: ignore[operator]
    return made


def select_attention(module: Any, backend: str) -> None:
    """Select the attention kernel of a diffusers model, by diffusers' name.

    Raises:
        ImportError: the kernel's package is not installed, or the kernel could not be downloaded.
    """
    try:
        module.set_attention_backend(backend)
    except Exception as error:
        raise ImportError(f"model.attn_backend={backend!r} cannot be used: {error}") from error
    if not any(hasattr(each, "_attention_backend") for each in module.attn_processors.values()):
        # A warning, not an error: recipes of verl-omni set a backend for every family.
        logger.warning(
            "model.attn_backend=%r has no effect: %s always uses torch's attention", backend, type(module).__name__
        )


def shard(module: nn.Module, mesh: DeviceMesh, prefixes: Sequence[str], *, reshard_after_forward: bool) -> None:
    """Shard with FSDP2: each layer named `<prefix><index>` for itself, then the rest of the module."""
    from torch.distributed.fsdp import fully_shard

    names = [name for name, _ in module.named_modules() if _is_layer(name, prefixes)]
    for name in names:
        fully_shard(module.get_submodule(name), mesh=mesh, reshard_after_forward=reshard_after_forward)
    fully_shard(module, mesh=mesh, reshard_after_forward=reshard_after_forward)


def _is_layer(name: str, prefixes: Sequence[str]) -> bool:
    return any(name.startswith(prefix) and name.removeprefix(prefix).isdigit() for prefix in prefixes)


def gather(tensor: torch.Tensor) -> torch.Tensor:
    """The unsharded tensor of a parameter. A collective: every rank must call it in the same order."""
    whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor  # type: ignore[attr-defined]
    return whole.detach()
