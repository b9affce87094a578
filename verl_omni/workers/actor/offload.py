"""What of a policy is on the host while nobody trains, so that a colocated engine has the device's memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from verl_omni.workers.actor.policy import Policy
from verl_omni.workers.config import DiffusionFSDPConfig

HOST = torch.device("cpu")


class Offload:
    """Moves weights and the optimizer's states between host and device, as the settings ask.

    Where there is no device, all of it is on the host anyway, and nothing moves.

    Args:
        config: `param_offload` and `optimizer_offload` say what is on the host between uses.
    """

    def __init__(
        self, policy: Policy, optimizer: torch.optim.Optimizer, device: torch.device, config: DiffusionFSDPConfig
    ) -> None:
        self._policy, self._optimizer, self._device = policy, optimizer, device
        self._weights, self._states = config.param_offload, config.optimizer_offload

    @contextmanager
    def loaded(self, *, states: bool = False) -> Iterator[None]:
        """The weights are on the device in this block, and the optimizer's states too if `states`."""
        if self._weights:
            self._policy.move(self._device)
        if self._states and states:
            self._move_states(self._device)
        try:
            yield
        finally:
            self.rest()

    def rest(self) -> None:
        """Leave the device to the engine, which is another process: what torch only keeps for later is freed too."""
        if self._device == HOST:
            return
        if self._weights:
            self._policy.move(HOST)
        if self._states:
            self._move_states(HOST)
        torch.get_device_module(self._device).empty_cache()

    def _move_states(self, device: torch.device) -> None:
        for state in self._optimizer.state.values():
            for name, value in state.items():
                if value.ndim > 0:  # the number of steps is a scalar on the host, where AdamW wants it
                    state[name] = value.to(device)
