"""`Policy`: the trained transformer, which can also run as the base model and as the old policy."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from verl_omni.algos.flow_matching import TIMESTEPS
from verl_omni.pipelines.registry import TrainingAdapter
from verl_omni.workers.actor.experts import Experts
from verl_omni.workers.actor.parallel import layer_names

Batch = dict[str, Tensor]
PolicyName = Literal["default", "old", "average"]  # the trained one, and its delayed copies


def average_decay(steps: int, decay: float) -> float:
    """Decay of the moving average after optimizer step `steps`, from 1: min((1 + n) / (10 + n), decay).

    So the average forgets the start early, as in the code of Flow-GRPO's authors and in diffusers' `EMAModel`.
    """
    return min((1 + steps) / (10 + steps), decay)


class DelayedPolicy:
    """A copy of the trained parameters that follows them with a delay, float32 and sharded as they are.

    As the old policy of DiffusionNFT (arXiv:2509.16117, section 3.3), or as an exponential moving average.

    Attributes:
        values: tensors by parameter name.
    """

    def __init__(self, trained: Mapping[str, nn.Parameter]) -> None:
        self.values = {name: parameter.detach().clone() for name, parameter in trained.items()}

    @torch.no_grad()
    def follow(self, trained: Mapping[str, nn.Parameter], decay: float) -> None:
        """Move towards the trained parameters: copy = decay * copy + (1 - decay) * trained."""
        for name, value in self.values.items():
            value.mul_(decay).add_(trained[name].detach(), alpha=1 - decay)


class Policy:
    """The interface of the model for training algorithms.

    Args:
        adapter: training adapter of the model's family.
        dtype: dtype that the layers compute in.
        lora: whether a LoRA adapter is trained; the base model is then the model with the adapter disabled.
        keeps_old: keep an old policy. averages: keep an exponential moving average of the trained parameters.
        base: the base model, when all weights are trained and it is kept; it becomes frozen.

    Attributes:
        layers: number of layers that a latent passes through.
    """

    def __init__(
        self,
        module: nn.Module,
        adapter: TrainingAdapter,
        *,
        dtype: torch.dtype,
        lora: bool,
        keeps_old: bool,
        averages: bool = False,
        base: nn.Module | None = None,
    ) -> None:
        self.module = module
        self.adapter = adapter
        self.dtype = dtype
        self.lora = lora
        self.trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self.old = DelayedPolicy(self.trained) if keeps_old else None
        self.average = DelayedPolicy(self.trained) if averages else None
        self.base = None if base is None else _frozen_base(base, module)
        first = (
            next(module.children()) if isinstance(module, Experts) else module
        )  # each of two sees its own noise levels
        self.layers = len(layer_names(first, adapter.LAYERS))

    def move(self, device: torch.device) -> None:
        """Move the model, its delayed copies and the base to a device; the parameter objects stay the same."""
        self.module.to(device)
        if self.base is not None:
            self.base.to(device)
        for copy in (self.old, self.average):
            if copy is not None:
                copy.values = {name: value.to(device) for name, value in copy.values.items()}

    def velocity(self, part: Batch, x: Tensor, timestep: Tensor, guidance_scale: float) -> Tensor:
        """Predicted velocity, float32 in the shape of `x`, of latents `x` [B, ...] at `timestep` [B]."""
        return self.adapter.velocity(self.module, part, x, timestep, guidance_scale, dtype=self.dtype)

    def velocity_at(self, part: Batch, x: Tensor, time: Tensor) -> Tensor:
        """Predicted velocity at noise level `time` [B] in [0, 1), without guidance."""
        return self.velocity(part, x, time * TIMESTEPS, 1.0)

    def require_old(self) -> DelayedPolicy:
        """The old policy.

        Raises:
            ValueError: none is kept.
        """
        if self.old is None:
            raise ValueError("no old policy is kept: model.policy_state_adapters must have `old`")
        return self.old

    def require_average(self) -> DelayedPolicy:
        """The moving average.

        Raises:
            ValueError: none is kept.
        """
        if self.average is None:
            raise ValueError("no average of the trained weights is kept: set actor.ema_decay")
        return self.average

    @contextmanager
    def as_base(self) -> Iterator[None]:
        """Run as the base model, without gradients: with the adapter disabled, or with the base that is kept.

        Raises:
            ValueError: all weights are trained, and the base is not kept.
        """
        module: Any = self.module
        if self.base is not None:
            self.module = self.base
        elif self.lora:
            module.disable_adapters()
            # peft freezes the adapter with it, and FSDP2 notes at the first pass of all which weights get gradients.
            for parameter in self.trained.values():
                parameter.requires_grad_(True)
        else:
            raise ValueError("the base model is not kept: `compares_with_base` of the algorithm must be true")
        try:
            with torch.no_grad():
                yield
        finally:
            self.module = module
            if self.base is None:
                module.enable_adapters()

    @contextmanager
    def as_old(self) -> Iterator[None]:
        """Run as the old policy, without gradients.

        Raises:
            ValueError: none is kept.
        """
        old = self.require_old()
        new = DelayedPolicy(self.trained)
        with torch.no_grad():
            self._copy_values(old)
            try:
                yield
            finally:
                self._copy_values(new)

    def _copy_values(self, policy: DelayedPolicy) -> None:
        for name, parameter in self.trained.items():
            parameter.copy_(policy.values[name])
        self.reshard()

    def reshard(self) -> None:
        """Drop unsharded weights that FSDP2 may still hold from the last forward pass; call it after a change."""
        for part in self.module.modules():
            if isinstance(part, FSDPModule):
                part.reshard()


def _frozen_base(base: nn.Module, trained: nn.Module) -> nn.Module:
    """The base with the buffers of the trained model: loaded with weights in bfloat16, its own would be rounded."""
    for name, buffer in trained.named_buffers():
        owner, _, attribute = name.rpartition(".")
        base.get_submodule(owner)._buffers[attribute] = buffer
    return base.requires_grad_(False)
