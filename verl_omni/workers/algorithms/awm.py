"""AWM, advantage weighted matching (arXiv:2509.25050): the flow-matching loss of pretraining as a policy gradient.

With x_t = (1 - t) x0 + t e for a sample x0, noise e and a random noise level t, a sample's log-likelihood at (t, e) is

    l(theta) = -mean((v_theta(x_t, t) - (e - x0))^2),

and with its advantage A and the ratio r = exp(l(theta) - l(theta_old)) the loss is

    max(-A r, -A clip(r, 1 - c, 1 + c)) + b mean((v_theta(x_t, t) - v_base(x_t, t))^2).

In the first optimizer step r is 1, and the gradient is A times the gradient of the flow-matching loss. All noise levels
have the same weight.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from omegaconf import DictConfig
from torch import Tensor
from typing_extensions import override

from verl_omni.algos import flow_matching, grpo
from verl_omni.workers.actor.policy import Batch, Policy
from verl_omni.workers.algorithms.base import (
    Objective,
    Samples,
    TrainingAlgorithm,
    draw_seeds,
    estimate_advantages,
    with_draws,
)
from verl_omni.workers.config import DiffusionActorConfig, DiffusionLossConfig
from verl_omni.workers.config.diffusion.file_defaults import FROM_FILE


@dataclass
class AWMLossConfig(DiffusionLossConfig):
    """Settings of AWM, explained in `trainer/config/loss/awm.yaml`."""

    loss_mode: Literal["awm"] = "awm"
    clip_ratio: float = FROM_FILE
    adv_clip_max: float = FROM_FILE
    ref_kl_coef: float = FROM_FILE
    draws: int = FROM_FILE


class AWMObjective:
    """The clipped policy gradient of the flow-matching loss.

    Batch: `clean_latents` [B, ...], `advantages` [B], `draw_seeds` int64 [B], and the embeddings. Every pass over a row
    draws the same noise levels and noise, so `l(theta)` and `l(theta_old)` are of the same (t, e).
    """

    samples_per_row = 1
    recomputed: Literal["later"] = "later"

    def __init__(self, policy: Policy, config: AWMLossConfig) -> None:
        self.policy = policy
        self.config = config
        self.at_start = True  # no optimizer step of the update has been taken

    def prepare(self, batch: Batch) -> Batch:
        return with_draws(batch, self.config.draws, batch["clean_latents"].shape[1:])

    def term_count(self, batch: Batch) -> int:
        return self.config.draws

    def rows_with_gradient(self, batch: Batch) -> Tensor:
        return (batch["advantages"] != 0) | (self.config.ref_kl_coef > 0)

    def start_values(self, part: Batch, place: int) -> dict[str, Tensor]:
        return {"old_likelihood": self._evaluate(part, place)[0]}

    def term(self, part: Batch, place: int) -> tuple[Tensor, dict[str, Tensor]]:
        likelihood, velocity, x = self._evaluate(part, place)
        old = likelihood.detach() if self.at_start else part["old_likelihood"][:, place]
        settings = self.config
        loss = grpo.clipped(
            likelihood - old, part["advantages"], clip_ratio=settings.clip_ratio, adv_clip_max=settings.adv_clip_max
        )
        difference = (likelihood - old).detach()
        measured = {"matching_error": -likelihood.detach(), "ratio_distance": (difference.exp() - 1).abs()}
        if settings.ref_kl_coef > 0:
            with self.policy.as_base():
                base = self.policy.velocity_at(part, x, part["times"][:, place])
            distance = flow_matching.error(velocity, base)
            loss = loss + settings.ref_kl_coef * distance
            measured["distance_to_base"] = distance.detach()
        return loss, measured

    def _evaluate(self, part: Batch, place: int) -> tuple[Tensor, Tensor, Tensor]:
        """The log-likelihood [B], the velocity and the noisy latents [B, ...] of term `place`."""
        time = part["times"][:, place]
        x, target = flow_matching.add_noise(part["clean_latents"], part["noise"][:, place], time)
        velocity = self.policy.velocity_at(part, x, time)
        return -flow_matching.error(velocity, target), velocity, x

    def summarize(self, measured: dict[str, Tensor], count: int) -> dict[str, float]:
        self.at_start = False
        return {f"actor/{name}": values.sum().item() / count for name, values in measured.items()}

    def finish(self) -> None:
        pass


class AWM(TrainingAlgorithm[AWMLossConfig]):
    """Trains on final latents at random noise levels, weighted by the advantages; the trained policy samples."""

    settings = AWMLossConfig

    @override
    def compares_with_base(self, loss: AWMLossConfig, actor: DiffusionActorConfig) -> bool:
        return loss.ref_kl_coef > 0

    @override
    def training_batch(self, samples: Samples, loss: AWMLossConfig, config: DictConfig, seed: int) -> Batch:
        advantages = estimate_advantages(samples, config)
        return {**samples.tensors, "advantages": advantages, "draw_seeds": draw_seeds(len(advantages), seed)}

    @override
    def objective(
        self, policy: Policy, loss: AWMLossConfig, actor: DiffusionActorConfig, arguments: Mapping[str, Any]
    ) -> Objective:
        return AWMObjective(policy, loss)
