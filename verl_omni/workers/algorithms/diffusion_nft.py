"""DiffusionNFT (arXiv:2509.16117)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from omegaconf import DictConfig
from torch import Tensor
from typing_extensions import override

from verl_omni.algos import flow_matching, grpo, nft
from verl_omni.workers.actor.policy import Batch, Policy
from verl_omni.workers.algorithms.base import (
    Objective,
    Samples,
    TrainingAlgorithm,
    draw_seeds,
    estimate_advantages,
    with_draws,
)
from verl_omni.workers.algorithms.registered.diffusion_nft import DECAY_SCHEDULES
from verl_omni.workers.config import DiffusionActorConfig, DiffusionLossConfig
from verl_omni.workers.config.diffusion.file_defaults import FROM_FILE


@dataclass
class DiffusionNFTLossConfig(DiffusionLossConfig):
    """Settings of DiffusionNFT, explained in `trainer/config/loss/diffusion_nft.yaml`."""

    loss_mode: Literal["diffusion_nft"] = "diffusion_nft"
    mix_beta: float = FROM_FILE
    adv_clip_max: float = FROM_FILE
    adaptive_weight_min: float = FROM_FILE
    ref_kl_coef: float = FROM_FILE
    draws: int = FROM_FILE
    old_decay_rate: float = FROM_FILE
    old_decay_max: float = FROM_FILE


class NFTObjective:
    """Flow-matching loss of the implicit positive and negative policies on samples of the old policy.

    Batch: `clean_latents` [B, ...], `sampler_levels` [B, S], `optimality` [B] in [0, 1], `draw_seeds` int64 [B], and
    the embeddings.

    Args:
        timestep_fraction: share of the sampler's noise levels that each sample is trained on, in (0, 1], as in the
            code of DiffusionNFT's authors; None: `draws` random levels.
        step: training step, from 1, which determines the decay of the old policy.
        schedule: one of `registered.diffusion_nft.DECAY_SCHEDULES`; None: the settings
            `old_decay_rate` and `old_decay_max`.
        interval: training steps between two updates of the old policy.

    Raises:
        ValueError: no old policy is kept.
    """

    samples_per_row = 1

    def __init__(
        self,
        policy: Policy,
        config: DiffusionNFTLossConfig,
        *,
        step: int,
        schedule: str | None = None,
        interval: int = 1,
        timestep_fraction: float | None = None,
    ) -> None:
        self.policy = policy
        self.config = config
        self.step = step
        self.old = policy.require_old()
        self.schedule = schedule
        self.interval = interval
        self.timestep_fraction = timestep_fraction

    def prepare(self, batch: Batch) -> Batch:
        drawn = with_draws(batch, self.term_count(batch), batch["clean_latents"].shape[1:])
        if self.timestep_fraction is None:
            return drawn
        levels = batch["sampler_levels"]
        # Another seed: a generator with the row's seed would repeat the random bits of its noise.
        places = grpo.choose_steps(batch["draw_seeds"] + 1, levels.shape[1], self.timestep_fraction)
        return {**drawn, "times": levels.gather(1, places.to(levels.device))}

    def term_count(self, batch: Batch) -> int:
        if self.timestep_fraction is None:
            return self.config.draws
        return grpo.chosen_count(batch["sampler_levels"].shape[1], self.timestep_fraction)

    def rows_with_gradient(self, batch: Batch) -> Tensor:
        # At optimality 1/2 the loss still pulls the policy to the old one.
        return torch.ones(len(batch["optimality"]), dtype=torch.bool)

    def term(self, part: Batch, place: int) -> tuple[Tensor, dict[str, Tensor]]:
        time = part["times"][:, place]
        x, target = flow_matching.add_noise(part["clean_latents"], part["noise"][:, place], time)
        with self.policy.as_old():
            old = self.policy.velocity_at(part, x, time)
        base = self._base_velocity(part, x, time)
        velocity = self.policy.velocity_at(part, x, time)
        settings = self.config
        good = part["optimality"]
        loss = nft.loss(velocity, old, target, good, time, beta=settings.mix_beta, least=settings.adaptive_weight_min)
        # The gradient at the old policy is proportional to 2 r - 1 = A / adv_clip_max. Multiplied, it does not depend
        # on the clip, and ref_kl_coef means the same with each.
        loss = settings.adv_clip_max * loss
        measured = {"distance_to_old": flow_matching.error(velocity.detach(), old)}
        if base is not None:
            distance = flow_matching.error(velocity, base)
            loss = loss + settings.ref_kl_coef * distance
            measured["distance_to_base"] = distance.detach()
        return loss, measured

    def _base_velocity(self, part: Batch, x: Tensor, time: Tensor) -> Tensor | None:
        if self.config.ref_kl_coef == 0:
            return None
        with self.policy.as_base():
            return self.policy.velocity_at(part, x, time)

    def summarize(self, measured: dict[str, Tensor], count: int) -> dict[str, float]:
        return {f"actor/{name}": values.sum().item() / count for name, values in measured.items()}

    def finish(self) -> None:
        if self.step % self.interval:
            return
        rates = {"rate": self.config.old_decay_rate, "most": self.config.old_decay_max}
        settings = rates if self.schedule is None else DECAY_SCHEDULES[self.schedule]
        self.old.follow(self.policy.trained, nft.old_decay(self.step - 1, **settings))


class DiffusionNFT(TrainingAlgorithm[DiffusionNFTLossConfig]):
    """Trains on final latents at random noise levels, or at the sampler's; the old policy samples."""

    settings = DiffusionNFTLossConfig

    @override
    def compares_with_base(self, loss: DiffusionNFTLossConfig, actor: DiffusionActorConfig) -> bool:
        return loss.ref_kl_coef > 0

    @override
    def training_batch(self, samples: Samples, loss: DiffusionNFTLossConfig, config: DictConfig, seed: int) -> Batch:
        optimality = nft.optimality(estimate_advantages(samples, config), loss.adv_clip_max)
        return {**samples.tensors, "optimality": optimality, "draw_seeds": draw_seeds(len(optimality), seed)}

    @override
    def update_arguments(self, config: DictConfig, step: int) -> dict[str, Any]:
        settings = config.algorithm
        schedule = settings.old_policy_decay_schedule
        interval = settings.old_policy_update_interval
        return {
            "step": step,
            "schedule": schedule,
            "interval": interval,
            "timestep_fraction": settings.timestep_fraction,
        }

    @override
    def objective(
        self, policy: Policy, loss: DiffusionNFTLossConfig, actor: DiffusionActorConfig, arguments: Mapping[str, Any]
    ) -> Objective:
        return NFTObjective(policy, loss, **arguments)
