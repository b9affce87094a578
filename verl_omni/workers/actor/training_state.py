"""Training state: everything an actor needs to resume bit-exactly, and its files.

Each rank writes its own shards (torch.distributed.checkpoint), and any number of ranks can read them.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh

from verl_omni.workers.actor.policy import Policy

# Keys of the stored state.
TRAINED, OLD, OPTIMIZER, REST = "trained", "old", "optimizer", "rest"
INDEX = ".metadata"  # of torch.distributed.checkpoint
_SHARDED = StateDictOptions(full_state_dict=False, flatten_optimizer_state_dict=True)


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
        """Write this rank's shards. A collective: every rank calls it."""
        folder.mkdir(parents=True, exist_ok=True)
        with _quiet():
            dcp.save(self._state(), checkpoint_id=folder, no_dist=self.mesh is None)

    def load(self, folder: Path) -> None:
        """Read back what `save` wrote, with any number of ranks. A collective: every rank calls it.

        Raises:
            FileNotFoundError: the checkpoint does not exist.
            ValueError: it was written by a model with other trained weights, or without an old policy.
        """
        if not (folder / INDEX).is_file():
            raise FileNotFoundError(f"{folder} has no training state")
        state = self._state()
        self._check_names(folder, state)
        with _quiet():
            dcp.load(state, checkpoint_id=folder, no_dist=self.mesh is None)
        self.policy.reshard()
        set_optimizer_state_dict(self.policy.module, self.optimizer, state[OPTIMIZER], options=_SHARDED)
        rest = state[REST]
        self.scheduler.load_state_dict(rest["scheduler"])
        self.generator.set_state(rest["generator"])
        torch.set_rng_state(rest["torch"])

    def _state(self) -> dict[str, Any]:
        """The state as references: loading writes into its tensors."""
        old = self.policy.old
        return {
            TRAINED: {name: parameter.detach() for name, parameter in self.policy.trained.items()},
            **({OLD: dict(old.values)} if old is not None else {}),
            OPTIMIZER: get_optimizer_state_dict(self.policy.module, self.optimizer, options=_SHARDED),
            REST: {
                "scheduler": self.scheduler.state_dict(),
                "generator": self.generator.get_state(),
                "torch": torch.get_rng_state(),
            },
        }

    @staticmethod
    def _check_names(folder: Path, state: dict[str, Any]) -> None:
        stored = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata
        trained = {name.removeprefix(f"{TRAINED}.") for name in stored if name.startswith(f"{TRAINED}.")}
        if trained != set(state[TRAINED]):
            raise ValueError(
                f"checkpoint {folder} has {len(trained)} trained tensors, the model {len(state[TRAINED])}: "
                "were model.lora_rank or model.target_modules changed?"
            )
        if OLD in state and not any(name.startswith(f"{OLD}.") for name in stored):
            raise ValueError(f"checkpoint {folder} has no old policy: was actor.diffusion_loss.loss_mode changed?")


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the warning that a single process gets for having no process group."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        yield
