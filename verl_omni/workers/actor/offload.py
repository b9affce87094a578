"""Offload weights and optimizer state to CPU memory during generation, for a colocated engine."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from verl_omni.workers.actor.policy import Policy
from verl_omni.workers.config import DiffusionFSDPConfig

CPU = torch.device("cpu")


class Offload:
    """Moves weights and optimizer state between accelerator and CPU memory; nothing moves when training on the CPU.

    Args:
        config: `param_offload` and `optimizer_offload` select what is in CPU memory between uses.
    """

    def __init__(
        self, policy: Policy, optimizer: torch.optim.Optimizer, device: torch.device, config: DiffusionFSDPConfig
    ) -> None:
        self._policy = policy
        self._optimizer = optimizer
        self._device = device
        self._weights = config.param_offload
        self._states = config.optimizer_offload

    @contextmanager
    def loaded(self, *, states: bool = False) -> Iterator[None]:
        """Keep the weights on the device in this block, and the optimizer state too if `states`."""
        if self._weights:
            self._policy.move(self._device)
        if self._states and states:
            self._move_states(self._device)
        try:
            yield
        finally:
            self.rest()

    def rest(self) -> None:
        """Offload, and release torch's cached device memory, which the engine's process could not use otherwise."""
        if self._device == CPU:
            return
        if self._weights:
            self._policy.move(CPU)
        if self._states:
            self._move_states(CPU)
        torch.get_device_module(self._device).empty_cache()

    def _move_states(self, device: torch.device) -> None:
        for state in self._optimizer.state.values():
            for name, value in state.items():
                if value.ndim > 0:  # AdamW keeps its step counter, a scalar, on the CPU
                    state[name] = value.to(device)
