"""Typed settings of the trained model: `actor_rollout_ref.actor`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from verl.base_config import BaseConfig

STRATEGIES = ("fsdp", "fsdp2")


@dataclass
class DiffusionLossConfig(BaseConfig):
    """Settings of a loss; each training algorithm has a type of its own (`verl_omni/workers/algorithms`).

    Attributes:
        loss_mode: name of the algorithm.
    """

    loss_mode: str = field(kw_only=True)


def require_positive(loss: str, **numbers: float) -> None:
    """Refuse settings of a loss that are not positive.

    Raises:
        ValueError: one is not; the message names it.
    """
    for name, number in numbers.items():
        if number <= 0:
            raise ValueError(f"{loss}: {name} must be positive: {number}")


@dataclass
class DiffusionOptimizerConfig(BaseConfig):
    """AdamW and its schedule; warm-up and total are counted in optimizer steps."""

    lr: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 1e-4
    lr_scheduler_type: Literal["constant", "cosine"] = "constant"
    lr_warmup_steps: int = 0
    total_training_steps: int = -1


@dataclass
class DiffusionFSDPConfig(BaseConfig):
    """How weights lie in the devices' memory; a host without any ignores it.

    Attributes:
        reshard_after_forward: of FSDP2 (`fully_shard`), which an actor of several processes is sharded by.
        param_offload: weights are on the host while nobody trains, so that the engine has the device's memory.
        optimizer_offload: the optimizer's states too.
    """

    reshard_after_forward: bool = True
    param_offload: bool = False
    optimizer_offload: bool = False


@dataclass
class DiffusionActorConfig(BaseConfig):
    """How the policy is updated.

    Attributes:
        diffusion_loss: what is learned from the samples.
        ppo_mini_batch_size: prompts per optimizer step (times `rollout.n` samples), as in verl.
        ppo_micro_batch_size_per_gpu: samples per forward pass; gradients accumulate over the rest.
        ppo_epochs: passes over each batch.
        grad_clip: largest gradient norm.
        use_kl_loss, kl_loss_coef: KL to the base model (adapter switched off); of Flow-GRPO alone.
        dtype: parameters' dtype.
        strategy: how several processes share it; `fsdp` too means FSDP2.

    Raises:
        ValueError: `strategy` is another.
    """

    strategy: str = "fsdp2"
    ppo_mini_batch_size: int = 16
    ppo_micro_batch_size_per_gpu: int | None = None
    ppo_epochs: int = 1
    shuffle: bool = False
    grad_clip: float = 1.0
    use_kl_loss: bool = False
    kl_loss_coef: float = 0.0
    dtype: str = "float32"
    seed: int = 0
    diffusion_loss: DiffusionLossConfig = field(kw_only=True)
    optim: DiffusionOptimizerConfig = field(default_factory=DiffusionOptimizerConfig)
    fsdp_config: DiffusionFSDPConfig = field(default_factory=DiffusionFSDPConfig)

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise ValueError(f"Unknown strategy: {self.strategy!r}; one of {STRATEGIES}, which both mean FSDP2")
