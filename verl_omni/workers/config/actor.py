"""Typed settings of the trained model: `actor_rollout_ref.actor`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from verl.base_config import BaseConfig


@dataclass
class DiffusionLossConfig(BaseConfig):
    """The policy loss. `clip_ratio` bounds |ratio - 1|; `adv_clip_max` bounds |advantage|."""

    loss_mode: str = "flow_grpo"
    clip_ratio: float = 1e-4
    adv_clip_max: float = 5.0


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
    """FSDP2 (`fully_shard`); used when the actor has more than one process."""

    reshard_after_forward: bool = True
    param_offload: bool = False
    optimizer_offload: bool = False


@dataclass
class DiffusionActorConfig(BaseConfig):
    """How the policy is updated.

    Attributes:
        ppo_mini_batch_size: prompts per optimizer step (times `rollout.n` samples), as in verl.
        ppo_micro_batch_size_per_gpu: samples per forward pass; gradients accumulate over the rest.
        ppo_epochs: passes over each batch.
        grad_clip: largest gradient norm.
        use_kl_loss, kl_loss_coef: KL to the base model (adapter switched off).
        dtype: parameters' dtype.
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
    diffusion_loss: DiffusionLossConfig = field(default_factory=DiffusionLossConfig)
    optim: DiffusionOptimizerConfig = field(default_factory=DiffusionOptimizerConfig)
    fsdp_config: DiffusionFSDPConfig = field(default_factory=DiffusionFSDPConfig)
