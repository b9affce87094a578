"""`Policy`: the trained transformer, and the two others that it is compared with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from verl_omni.algos.flow_matching import TIMESTEPS
from verl_omni.pipelines.registry import TrainingAdapter

Batch = dict[str, Tensor]


class OldPolicy:
    """A delayed copy of what is trained (arXiv:2509.16117, section 3.3), sharded as the parameters are.

    Attributes:
        values: by the parameter's name.
    """

    def __init__(self, trained: Mapping[str, nn.Parameter]) -> None:
        self.values = {name: parameter.detach().clone() for name, parameter in trained.items()}

    @torch.no_grad()
    def follow(self, trained: Mapping[str, nn.Parameter], decay: float) -> None:
        """decay x old + (1 - decay) x trained."""
        for name, value in self.values.items():
            value.mul_(decay).add_(trained[name].detach(), alpha=1 - decay)


class Policy:
    """The model as algorithms see it.

    Args:
        adapter: what the trainer knows of the model's family.
        lora: whether an adapter is trained, so that the base is the model without it.
        keeps_old: hold a delayed copy of what is trained.
    """

    def __init__(self, module: nn.Module, adapter: TrainingAdapter, *, lora: bool, keeps_old: bool) -> None:
        self.module, self.adapter, self.lora = module, adapter, lora
        self.trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self.old = OldPolicy(self.trained) if keeps_old else None

    def move(self, device: torch.device) -> None:
        """Take the model, and what it is compared with, to a device. Parameters stay the objects that they are."""
        self.module.to(device)
        if self.old is not None:
            self.old.values = {name: value.to(device) for name, value in self.old.values.items()}

    def velocity(self, part: Batch, x: Tensor, timestep: Tensor, guidance_scale: float) -> Tensor:
        """What the model predicts for latents `x` [B, ...] at `timestep` [B], float32 of the same shape."""
        return self.adapter.velocity(self.module, part, x, timestep, guidance_scale)

    def velocity_at(self, part: Batch, x: Tensor, time: Tensor) -> Tensor:
        """The same at the noise level `time` [B] in [0, 1), without guidance."""
        return self.velocity(part, x, time * TIMESTEPS, 1.0)

    def require_old(self) -> OldPolicy:
        """The old policy.

        Raises:
            ValueError: there is none.
        """
        if self.old is None:
            raise ValueError("there is no old policy: model.policy_state_adapters must have `old`")
        return self.old

    @contextmanager
    def as_base(self) -> Iterator[None]:
        """Be the base, without gradients: the model with its adapter switched off needs no second copy.

        Raises:
            ValueError: all weights are trained, so there is no base.
        """
        if not self.lora:
            raise ValueError("a comparison with the base needs LoRA: full weights would need a second copy of it")
        module: Any = self.module
        module.disable_adapters()
        try:
            with torch.no_grad():
                yield
        finally:
            module.enable_adapters()

    @contextmanager
    def as_old(self) -> Iterator[None]:
        """Be the old policy, without gradients.

        Raises:
            ValueError: there is none.
        """
        old = self.require_old()
        new = OldPolicy(self.trained)
        with torch.no_grad():
            self._become(old)
            try:
                yield
            finally:
                self._become(new)

    def _become(self, policy: OldPolicy) -> None:
        for name, parameter in self.trained.items():
            parameter.copy_(policy.values[name])
        # Whole weights that FSDP2 kept from the last forward pass are those of the other policy.
        for part in self.module.modules():
            if isinstance(part, FSDPModule):
                part.reshard()
