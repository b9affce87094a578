"""Online Diffusion-DPO (arXiv:2311.12908)."""

from __future__ import annotations

import torch
from torch import Tensor

from verl_omni.algos import dpo, flow_matching
from verl_omni.workers.actor.objectives.nft import with_draws
from verl_omni.workers.actor.policy import Batch, Policy
from verl_omni.workers.config import DiffusionDPOLossConfig

OF_PAIRS = frozenset({"preferred", "draw_seeds", "times", "noise"})  # tensors with one entry a pair, not two


class DPOObjective:
    """The better sample of a pair gains on the base, the worse one loses. A row is a pair.

    Batch: `clean_latents` [P, 2, ...], the better one first, `preferred` [P], 0 where there is no preference,
    `draw_seeds` int64 [P]: both samples get the same noise at the same time; and the embeddings, [P, 2, ...].
    """

    samples_per_row = 2

    def __init__(self, policy: Policy, config: DiffusionDPOLossConfig) -> None:
        self.policy, self.config = policy, config

    def prepared(self, batch: Batch) -> Batch:
        return with_draws(batch, self.config.draws, batch["clean_latents"].shape[2:])

    def passes(self, batch: Batch) -> int:
        return self.config.draws

    def learning(self, batch: Batch) -> Tensor:
        return batch["preferred"] != 0

    def term(self, part: Batch, place: int) -> tuple[Tensor, dict[str, Tensor]]:
        samples = {name: value.flatten(0, 1) for name, value in part.items() if name not in OF_PAIRS}
        time = part["times"][:, place].repeat_interleave(2)
        noise = part["noise"][:, place].repeat_interleave(2, dim=0)
        x, target = flow_matching.noised(samples["clean_latents"], noise, time)
        with self.policy.as_base():
            base = flow_matching.error(self.policy.velocity_at(samples, x, time), target)
        error = flow_matching.error(self.policy.velocity_at(samples, x, time), target)
        margin = dpo.margin(error[0::2], base[0::2], error[1::2], base[1::2])
        preferred = part["preferred"]
        measured = {"margin": margin.detach() * preferred, "right": (margin.detach() > 0) * preferred}
        return dpo.loss(margin, beta=self.config.beta) * preferred, {**measured, "preferred": preferred}

    def summary(self, measured: dict[str, Tensor], count: int) -> dict[str, float]:
        compared = max(1.0, measured["preferred"].sum().item())
        return {
            "actor/margin": measured["margin"].sum().item() / compared,
            "actor/accuracy": measured["right"].sum().item() / compared,
            "actor/preferred_fraction": torch.count_nonzero(measured["preferred"]).item() / count,
        }

    def finished(self) -> None:
        pass
