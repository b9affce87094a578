"""Training state: everything an actor needs to resume bit-exactly, and its files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh

from verl_omni.workers.actor.build import gather
from verl_omni.workers.actor.policy import Policy

MODEL_FILE, OLD_FILE, TRAINING_FILE = "trained.safetensors", "old.safetensors", "training.pt"
_WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)


@dataclass(frozen=True, slots=True)
class TrainingState:
    """The trained weights, the old policy's, and the state of optimizer, schedule and random generators.

    Attributes:
        generator: orders the rows of a batch; torch's global CPU generator is saved too.
        mesh: that the policy is sharded over; None for one process.
    """

    policy: Policy
    optimizer: torch.optim.Optimizer
    scheduler: torch.optim.lr_scheduler.LRScheduler
    generator: torch.Generator
    mesh: DeviceMesh | None

    def save(self, folder: Path) -> None:
        """Write weights as safetensors, the rest with `torch.save`. Every rank gathers, rank 0 writes."""
        from safetensors.torch import save_file

        trained = _whole(self.policy.trained)
        old = _whole(self.policy.old.values) if self.policy.old is not None else None
        optimizer = get_optimizer_state_dict(self.policy.module, self.optimizer, options=_WHOLE)
        if self.mesh is not None and self.mesh.get_rank() != 0:
            return
        folder.mkdir(parents=True, exist_ok=True)
        save_file(trained, folder / MODEL_FILE)
        if old is not None:
            save_file(old, folder / OLD_FILE)
        training = {
            "optimizer": optimizer,
            "scheduler": self.scheduler.state_dict(),
            "generator": self.generator.get_state(),
            "torch": torch.get_rng_state(),
        }
        torch.save(training, folder / TRAINING_FILE)

    def load(self, folder: Path) -> None:
        """Read back on every rank what `save` wrote.

        Raises:
            FileNotFoundError: the checkpoint does not exist.
            ValueError: it was written by a model with other trained weights, or without an old policy.
        """
        from safetensors.torch import load_file

        stored = load_file(folder / MODEL_FILE)
        trained, old = self.policy.trained, self.policy.old
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
        set_optimizer_state_dict(self.policy.module, self.optimizer, training["optimizer"], options=_WHOLE)
        self.scheduler.load_state_dict(training["scheduler"])
        self.generator.set_state(training["generator"])
        torch.set_rng_state(training["torch"])


def _whole(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Unsharded tensors in CPU memory, on every rank."""
    return {name: gather(tensor).cpu().contiguous() for name, tensor in tensors.items()}


@torch.no_grad()
def _fill(tensors: Mapping[str, torch.Tensor], stored: Mapping[str, torch.Tensor]) -> None:
    for name, tensor in tensors.items():
        tensor.copy_(_like(stored[name], tensor))


def _like(whole: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """`whole`, sharded like `parameter`."""
    if not hasattr(parameter, "device_mesh"):
        return whole.to(parameter.device, parameter.dtype)
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(whole.to(parameter.device, parameter.dtype), parameter.device_mesh, parameter.placements)
