"""Training state: everything an actor needs to resume bit-exactly, and its files.

Each rank writes its own shards (torch.distributed.checkpoint), and any number of ranks can read them.
"""

import copy
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
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

from verl_omni.utils.root_cause import describe_error
from verl_omni.workers.actor.policy import Policy

# Keys of the stored state.
TRAINED = "trained"
OLD = "old"
AVERAGE = "average"
OPTIMIZER = "optimizer"
REST = "rest"
INDEX = ".metadata"  # written by torch.distributed.checkpoint
_SHARDED = StateDictOptions(full_state_dict=False, flatten_optimizer_state_dict=True)


@dataclass(frozen=True, slots=True)
class TrainingState:
    """The trained weights, the old policy's, their average, and the state of optimizer, schedule and random generators.

    Attributes:
        generator: orders the rows of a batch; torch's global CPU generator is saved too.
        mesh: device mesh that the policy is sharded over; None for one process.
    """

    policy: Policy
    optimizer: torch.optim.Optimizer
    scheduler: torch.optim.lr_scheduler.LambdaLR
    generator: torch.Generator
    mesh: DeviceMesh | None
    _groups: list[Any] = field(default_factory=list)  # the process group of background writes, once created

    def save(self, folder: Path) -> None:
        """Write this rank's shards. A collective: every rank calls it.

        Raises:
            OSError: a rank could not write its shards.
        """
        folder.mkdir(parents=True, exist_ok=True)
        _write(self._state(), folder, alone=self.mesh is None, group=None)

    def stage(self, folder: Path) -> Callable[[], None]:
        """Copy this rank's shards to CPU memory. Returns a function that writes the copy to `folder`, in any thread.

        Both are collectives: every rank calls them. The write uses a separate process group, so it runs in parallel
        with training. It raises the same errors as `save`.
        """
        folder.mkdir(parents=True, exist_ok=True)
        state = _copied(self._state())
        alone = self.mesh is None or self.mesh.size() == 1
        group = None if alone else self._group_of_writes()

        def write() -> None:
            _write(state, folder, alone=alone, group=group)

        return write

    def _group_of_writes(self) -> Any:
        if not self._groups:
            self._groups.append(torch.distributed.new_group(backend="gloo"))
        return self._groups[0]

    def load(self, folder: Path) -> None:
        """Read back what `save` wrote, with any number of ranks. A collective: every rank calls it.

        Learning rate, betas, eps and weight decay are not read: the optimizer keeps the values from its settings, and
        the schedule continues with them at the step of the checkpoint.

        Raises:
            FileNotFoundError: the checkpoint does not exist.
            ValueError: it was written by a model with other trained weights, by another optimizer, or without an old
                policy or an average.
            OSError: a rank could not read it.
        """
        if not (folder / INDEX).is_file():
            raise FileNotFoundError(f"{folder} has no training state")
        state = self._state()
        self._check_names(folder, state)
        options = [
            {name: value for name, value in group.items() if name != "params"} for group in self.optimizer.param_groups
        ]
        try:
            with _quiet():
                dcp.load(state, checkpoint_id=folder, no_dist=self.mesh is None)
        except dcp.api.CheckpointException as error:
            raise _failure(error, f"could not read the training state of {folder}") from error
        self.policy.reshard()
        set_optimizer_state_dict(self.policy.module, self.optimizer, state[OPTIMIZER], options=_SHARDED)
        others = state[REST]
        self._restore_schedule(others["scheduler"], options)
        self.generator.set_state(others["generator"])
        torch.set_rng_state(others["torch"])

    def _restore_schedule(self, stored: dict[str, Any], options: list[dict[str, Any]]) -> None:
        """Continue the schedule at the stored step, with the base learning rates and other options of the settings."""
        rates = [
            base * factor(stored["last_epoch"])
            for base, factor in zip(self.scheduler.base_lrs, self.scheduler.lr_lambdas, strict=True)
        ]
        self.scheduler.load_state_dict({**stored, "base_lrs": self.scheduler.base_lrs, "_last_lr": rates})
        for group, settings, rate in zip(self.optimizer.param_groups, options, rates, strict=True):
            group.update(settings, lr=rate)

    def _state(self) -> dict[str, Any]:
        """The state as references: loading writes into its tensors."""
        _create_missing_states(self.optimizer)
        old = self.policy.old
        average = self.policy.average
        return {
            TRAINED: {name: parameter.detach() for name, parameter in self.policy.trained.items()},
            **({OLD: dict(old.values)} if old is not None else {}),
            **({AVERAGE: dict(average.values)} if average is not None else {}),
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
                f"were model.lora_rank or model.target_modules changed?{_continue_with(trained)}"
            )
        shapes = {name: tuple(stored[f"{TRAINED}.{name}"].size) for name in trained}
        if changed := [name for name in sorted(shapes) if shapes[name] != tuple(state[TRAINED][name].shape)]:
            name = changed[0]
            now = tuple(state[TRAINED][changed[0]].shape)
            raise ValueError(
                f"checkpoint {folder} has {len(changed)} trained tensors of other shapes than the model: {name} "
                f"has {shapes[name]} instead of {now}; was model.lora_rank changed?"
            )
        optimizer = {name for name in stored if name.startswith(f"{OPTIMIZER}.")}
        if missing := sorted({f"{OPTIMIZER}.{name}" for name in state[OPTIMIZER]} - optimizer):
            raise ValueError(
                f"checkpoint {folder} has no {missing[0].removeprefix(f'{OPTIMIZER}.')}: was "
                "actor.optim.override_optimizer_config changed?"
            )
        if OLD in state and not any(name.startswith(f"{OLD}.") for name in stored):
            raise ValueError(f"checkpoint {folder} has no old policy: was actor.diffusion_loss.loss_mode changed?")
        if AVERAGE in state and not any(name.startswith(f"{AVERAGE}.") for name in stored):
            raise ValueError(
                f"checkpoint {folder} has no average of the weights: actor.ema_decay was not set in its run"
            )


def _continue_with(trained: Iterable[str]) -> str:
    """Advice for a checkpoint of an adapter: the targets that it has; empty if all weights were trained."""
    layers = {name.rpartition(".lora_")[0] for name in trained} - {""}
    suffixes = sorted({re.sub(r"^.*?\.\d+\.", "", layer) for layer in layers})
    return f" To continue it, write model.target_modules=[{','.join(suffixes)}]" if suffixes else ""


def read_weights(folder: Path, *, average: bool) -> dict[str, torch.Tensor]:
    """The whole trained weights of a training state, or their moving average, by parameter name; empty without them.

    For one process, which needs not be one of those that wrote it.

    Raises:
        FileNotFoundError: there is no training state. OSError: it cannot be read.
    """
    if not (folder / INDEX).is_file():
        raise FileNotFoundError(f"{folder} has no training state")
    key = AVERAGE if average else TRAINED
    stored = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata
    tensors = {
        name: torch.empty(stored_tensor.size, dtype=stored_tensor.properties.dtype)
        for name, stored_tensor in stored.items()
        if name.startswith(f"{key}.")
    }
    try:
        with _quiet():
            dcp.load(tensors, checkpoint_id=folder, no_dist=True)
    except dcp.api.CheckpointException as error:
        raise _failure(error, f"could not read the training state of {folder}") from error
    return {name.removeprefix(f"{key}."): value for name, value in tensors.items()}


def _create_missing_states(optimizer: torch.optim.Optimizer) -> None:
    """Give weights that had no optimizer step yet the state that they have before their first one.

    A checkpoint needs the states of all weights, because an optimizer that reads it has all of them. The step that
    creates them has a learning rate of 0 and gradients of 0, so it changes no weight; its count is taken back.
    """
    groups = optimizer.param_groups
    missing = [parameter for group in groups for parameter in group["params"] if parameter not in optimizer.state]
    if not missing:
        return
    for parameter in missing:
        parameter.grad = torch.zeros_like(parameter)
    kept = [{name: group[name] for name in ("lr", "eps")} for group in groups]
    for group in groups:
        group.update(lr=0.0, eps=1.0)  # with an eps of 0, it would divide 0 by 0
    optimizer.step()
    for group, values in zip(groups, kept, strict=True):
        group.update(values)
    optimizer.zero_grad()
    for parameter in missing:
        optimizer.state[parameter]["step"].zero_()


def _write(state: dict[str, Any], folder: Path, *, alone: bool, group: Any) -> None:
    try:
        with _quiet():
            dcp.save(state, checkpoint_id=folder, no_dist=alone, process_group=group)
    except dcp.api.CheckpointException as error:  # not an `Exception`, so few places would catch it
        raise _failure(error, f"could not write its training state to {folder}") from error


def _failure(error: Any, what: str) -> OSError:
    rank, (cause, _) = min(error.failures.items())
    return OSError(f"rank {rank} {what}: {describe_error(cause)}")


def _copied(value: Any) -> Any:
    """A copy in CPU memory; shards stay shards."""
    if isinstance(value, dict):
        return {name: _copied(item) for name, item in value.items()}
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    return copy.deepcopy(value)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the warning that a single process gets for having no process group."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        yield
