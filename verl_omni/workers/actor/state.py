"""Everything an actor needs to continue bit-exactly."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

from verl_omni.workers.actor.build import gathered

if TYPE_CHECKING:
    from verl_omni.workers.actor.actor import DiffusionActor

MODEL_FILE, OLD_FILE, TRAINING_FILE = "trained.safetensors", "old.safetensors", "training.pt"
_WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)


def save(actor: DiffusionActor, folder: Path) -> None:
    """Trained weights, and the old policy's, as safetensors; optimiser, schedule and generators by torch.

    Every rank takes part in gathering, the first one writes.
    """
    from safetensors.torch import save_file

    policy = actor.policy
    trained = _whole(policy.trained)
    old = _whole(policy.old.values) if policy.old is not None else None
    optimizer = get_optimizer_state_dict(actor.module, actor.optimizer, options=_WHOLE)
    if actor.mesh is not None and actor.mesh.get_rank() != 0:
        return
    folder.mkdir(parents=True, exist_ok=True)
    save_file(trained, folder / MODEL_FILE)
    if old is not None:
        save_file(old, folder / OLD_FILE)
    training = {
        "optimizer": optimizer,
        "scheduler": actor.scheduler.state_dict(),
        "generator": actor.generator.get_state(),
        "torch": torch.get_rng_state(),
    }
    torch.save(training, folder / TRAINING_FILE)


def load(actor: DiffusionActor, folder: Path) -> None:
    """Read back on every rank.

    Raises:
        FileNotFoundError: the checkpoint is not there.
        ValueError: it was written by a model with other trained weights, or without an old policy.
    """
    from safetensors.torch import load_file

    stored = load_file(folder / MODEL_FILE)
    trained, old = actor.policy.trained, actor.policy.old
    if set(stored) != set(trained):
        raise ValueError(
            f"checkpoint {folder} has {len(stored)} trained tensors, the model {len(trained)}: "
            "were model.lora_rank or model.target_modules changed?"
        )
    _fill(trained, stored)
    if old is not None:
        if not (folder / OLD_FILE).is_file():
            raise ValueError(f"checkpoint {folder} has no old policy: was actor.diffusion_loss.loss_mode changed?")
        _fill(old.values, load_file(folder / OLD_FILE))
    training = torch.load(folder / TRAINING_FILE, weights_only=True)
    set_optimizer_state_dict(actor.module, actor.optimizer, training["optimizer"], options=_WHOLE)
    actor.scheduler.load_state_dict(training["scheduler"])
    actor.generator.set_state(training["generator"])
    torch.set_rng_state(training["torch"])


def _whole(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Gathered on every rank, on the host."""
    return {name: gathered(tensor).cpu().contiguous() for name, tensor in tensors.items()}


@torch.no_grad()
def _fill(tensors: Mapping[str, torch.Tensor], stored: Mapping[str, torch.Tensor]) -> None:
    for name, tensor in tensors.items():
        tensor.copy_(_like(stored[name], tensor))


def _like(whole: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """`whole`, sharded as `parameter` is."""
    if not hasattr(parameter, "device_mesh"):
        return whole.to(parameter.device, parameter.dtype)
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(whole.to(parameter.device, parameter.dtype), parameter.device_mesh, parameter.placements)
