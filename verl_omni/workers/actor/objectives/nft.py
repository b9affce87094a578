"""DiffusionNFT (arXiv:2509.16117)."""

from __future__ import annotations

import torch
from torch import Tensor

from verl_omni.algos import flow_matching, nft
from verl_omni.workers.actor.policy import Batch, Policy
from verl_omni.workers.config import DiffusionNFTLossConfig


class NFTObjective:
    """Flow matching of the implicit positive and negative policies on clean samples of the old one.

    Batch: `clean_latents` [B, ...], `optimality` [B] in [0, 1], `draw_seeds` int64 [B], and the embeddings.

    Args:
        step: training step, from 1; says how far the old policy follows afterwards.

    Raises:
        ValueError: the policy keeps no old one.
    """

    samples_per_row = 1

    def __init__(self, policy: Policy, config: DiffusionNFTLossConfig, *, step: int) -> None:
        self.policy, self.config, self.step, self.old = policy, config, step, policy.require_old()

    def prepared(self, batch: Batch) -> Batch:
        return with_draws(batch, self.config.draws, batch["clean_latents"].shape[1:])

    def passes(self, batch: Batch) -> int:
        return self.config.draws

    def learning(self, batch: Batch) -> Tensor:
        # At r = 1/2 both implicit policies weigh the same, and the loss still pulls the policy to the old one.
        return torch.ones(len(batch["optimality"]), dtype=torch.bool)

    def term(self, part: Batch, place: int) -> tuple[Tensor, dict[str, Tensor]]:
        time = part["times"][:, place]
        x, target = flow_matching.noised(part["clean_latents"], part["noise"][:, place], time)
        with self.policy.as_old():
            old = self.policy.velocity_at(part, x, time)
        velocity = self.policy.velocity_at(part, x, time)
        loss = nft.loss(velocity, old, target, part["optimality"], beta=self.config.beta)
        return loss, {"distance_to_old": flow_matching.error(velocity.detach(), old)}

    def summary(self, measured: dict[str, Tensor], count: int) -> dict[str, float]:
        return {"actor/distance_to_old": measured["distance_to_old"].sum().item() / count}

    def finished(self) -> None:
        decay = nft.old_decay(self.step - 1, rate=self.config.old_decay_rate, most=self.config.old_decay_max)
        self.old.follow(self.policy.trained, decay)


def with_draws(batch: Batch, count: int, shape: tuple[int, ...]) -> Batch:
    """The batch with `times` [B, count] and `noise` [B, count, *shape] of its `draw_seeds`, on its device."""
    times, noise = flow_matching.draws(batch["draw_seeds"], count, shape)
    device = batch["draw_seeds"].device
    return {**batch, "times": times.to(device), "noise": noise.to(device)}
