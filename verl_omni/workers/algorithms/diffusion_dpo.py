"""Online Diffusion-DPO (arXiv:2311.12908)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from omegaconf import DictConfig
from torch import Tensor
from typing_extensions import override

from verl_omni.algos import dpo, flow_matching
from verl_omni.workers.actor.policy import Batch, Policy
from verl_omni.workers.algorithms.base import Objective, Samples, TrainingAlgorithm, draw_seeds, with_draws
from verl_omni.workers.config import DiffusionActorConfig, DiffusionLossConfig
from verl_omni.workers.config.diffusion.file_defaults import FROM_FILE

MARGIN = "actor/margin"
ACCURACY = "actor/accuracy"
PREFERRED = "actor/preferred_fraction"
DISTANCE = "actor/distance_to_base"
OF_PAIRS = frozenset({"preferred", "draw_seeds", "times", "noise"})  # tensors with one entry per pair; others have two


@dataclass
class DiffusionDPOLossConfig(DiffusionLossConfig):
    """Settings of Diffusion-DPO, explained in `trainer/config/loss/diffusion_dpo.yaml`."""

    loss_mode: Literal["diffusion_dpo"] = "diffusion_dpo"
    dpo_beta: float = FROM_FILE
    draws: int = FROM_FILE


class DPOObjective:
    """The DPO loss of pairs of samples; a row of the batch is a pair.

    Batch: `clean_latents` [P, 2, ...], the better sample first; `preferred` [P], 0 for equal rewards; `draw_seeds`
    int64 [P], so both samples of a pair get the same noise and noise level; and the embeddings, [P, 2, ...].
    """

    samples_per_row = 2

    def __init__(self, policy: Policy, config: DiffusionDPOLossConfig) -> None:
        self.policy = policy
        self.config = config

    def prepare(self, batch: Batch) -> Batch:
        return with_draws(batch, self.config.draws, batch["clean_latents"].shape[2:])

    def term_count(self, batch: Batch) -> int:
        return self.config.draws

    def rows_with_gradient(self, batch: Batch) -> Tensor:
        return batch["preferred"] != 0

    def term(self, part: Batch, place: int) -> tuple[Tensor, dict[str, Tensor]]:
        samples = {name: value.flatten(0, 1) for name, value in part.items() if name not in OF_PAIRS}
        time = part["times"][:, place].repeat_interleave(2)
        noise = part["noise"][:, place].repeat_interleave(2, dim=0)
        x, target = flow_matching.add_noise(samples["clean_latents"], noise, time)
        with self.policy.as_base():
            base_velocity = self.policy.velocity_at(samples, x, time)
        velocity = self.policy.velocity_at(samples, x, time)
        base = flow_matching.error(base_velocity, target)
        error = flow_matching.error(velocity, target)
        margin = dpo.margin(error[0::2], base[0::2], error[1::2], base[1::2])
        preferred = part["preferred"]
        measured = {"margin": margin.detach() * preferred, "right": (margin.detach() > 0) * preferred}
        # A policy that ruins the images of both has all pairs right, too.
        distance = flow_matching.error(velocity.detach(), base_velocity)
        measured["distance"] = (distance[0::2] + distance[1::2]) / 2 * preferred
        return dpo.loss(margin, beta=self.config.dpo_beta) * preferred, {**measured, "preferred": preferred}

    def summarize(self, measured: dict[str, Tensor], count: int) -> dict[str, float]:
        # Means over all pairs; each rank has equally many. `metrics` divides them by the share with a preference.
        of_all = {
            MARGIN: measured["margin"],
            ACCURACY: measured["right"],
            DISTANCE: measured["distance"],
            PREFERRED: measured["preferred"],
        }
        return {name: values.sum().item() / count for name, values in of_all.items()}

    def finish(self) -> None:
        pass


class DiffusionDPO(TrainingAlgorithm[DiffusionDPOLossConfig]):
    """Compares the best and the worst sample of each prompt. A row is such a pair."""

    settings = DiffusionDPOLossConfig

    @override
    def rows_per_prompt(self, samples: int) -> int:
        return 1

    @override
    def compares_with_base(self, loss: DiffusionDPOLossConfig, actor: DiffusionActorConfig) -> bool:
        return True

    @override
    def training_batch(self, samples: Samples, loss: DiffusionDPOLossConfig, config: DictConfig, seed: int) -> Batch:
        best, worst = dpo.pairs(samples.scores, samples.groups)
        pairs = {name: torch.stack([tensor[best], tensor[worst]], dim=1) for name, tensor in samples.tensors.items()}
        preferred = (samples.scores[best] > samples.scores[worst]).float()
        return {**pairs, "preferred": preferred, "draw_seeds": draw_seeds(len(best), seed)}

    @override
    def metrics(self, found: Mapping[str, float]) -> dict[str, float]:
        # Ranks and mini-batches have different numbers of pairs with a preference: a mean of means would count the
        # ones without any.
        preferred = found.get(PREFERRED)
        if preferred is None:
            return dict(found)
        of_pairs = (MARGIN, ACCURACY, DISTANCE)
        compared = {name: found[name] / preferred for name in of_pairs} if preferred > 0 else {}
        return {name: value for name, value in found.items() if name not in of_pairs} | compared

    @override
    def objective(
        self, policy: Policy, loss: DiffusionDPOLossConfig, actor: DiffusionActorConfig, arguments: Mapping[str, Any]
    ) -> Objective:
        return DPOObjective(policy, loss, **arguments)
