"""Typed settings of the trained model: `actor_rollout_ref.actor`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from verl.base_config import BaseConfig

STRATEGIES = ("fsdp", "fsdp2")


@dataclass
class FlowGRPOLossConfig(BaseConfig):
    """Flow-GRPO (arXiv:2505.05470). `clip_ratio` bounds |ratio - 1|; `adv_clip_max` bounds |advantage|."""

    loss_mode: Literal["flow_grpo"] = "flow_grpo"
    clip_ratio: float = 1e-4
    adv_clip_max: float = 5.0

    def rows_per_prompt(self, samples: int) -> int:
        """A row is a sample."""
        return samples


@dataclass
class DiffusionNFTLossConfig(BaseConfig):
    """DiffusionNFT (arXiv:2509.16117).

    Attributes:
        beta: how far the implicit policies are from the old one, as a share of the trained one's distance; > 0.
        adv_clip_max: advantage from which on a sample is certainly good; its negative, certainly bad; > 0.
        draws: noise levels at which each sample is trained on in an update; > 0.
        old_decay_rate, old_decay_max: after the update of step s, min(rate (s - 1), max) of the old policy stays.

    Raises:
        ValueError: a number is not in its range.
    """

    loss_mode: Literal["diffusion_nft"] = "diffusion_nft"
    beta: float = 1.0
    adv_clip_max: float = 5.0
    draws: int = 4
    old_decay_rate: float = 1e-3
    old_decay_max: float = 0.5

    def __post_init__(self) -> None:
        _positive("diffusion_nft", beta=self.beta, adv_clip_max=self.adv_clip_max, draws=self.draws)
        if self.old_decay_rate < 0 or not 0 <= self.old_decay_max < 1:
            raise ValueError(
                f"diffusion_nft: old_decay_rate must not be negative and old_decay_max lie in [0, 1): "
                f"{self.old_decay_rate}, {self.old_decay_max}"
            )

    def rows_per_prompt(self, samples: int) -> int:
        """A row is a sample."""
        return samples


@dataclass
class DiffusionDPOLossConfig(BaseConfig):
    """Online Diffusion-DPO (arXiv:2311.12908).

    Attributes:
        beta: how much the policy is held to the base; > 0.
        draws: noise levels at which each pair is trained on in an update; > 0.

    Raises:
        ValueError: a number is not in its range.
    """

    loss_mode: Literal["diffusion_dpo"] = "diffusion_dpo"
    beta: float = 2000.0
    draws: int = 4

    def __post_init__(self) -> None:
        _positive("diffusion_dpo", beta=self.beta, draws=self.draws)

    def rows_per_prompt(self, samples: int) -> int:
        """A row is a pair: the best and the worst of the samples."""
        return 1


DiffusionLossConfig = FlowGRPOLossConfig | DiffusionNFTLossConfig | DiffusionDPOLossConfig


def _positive(loss: str, **numbers: float) -> None:
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
    diffusion_loss: DiffusionLossConfig = field(default_factory=FlowGRPOLossConfig)
    optim: DiffusionOptimizerConfig = field(default_factory=DiffusionOptimizerConfig)
    fsdp_config: DiffusionFSDPConfig = field(default_factory=DiffusionFSDPConfig)

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise ValueError(f"Unknown strategy: {self.strategy!r}; one of {STRATEGIES}, which both mean FSDP2")
