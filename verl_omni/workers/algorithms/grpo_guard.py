"""GRPO-Guard (arXiv:2510.22319): Flow-GRPO with a normalized ratio and steps of equal weight."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor
from typing_extensions import override

from verl_omni.algos import grpo
from verl_omni.workers.actor.policy import Batch
from verl_omni.workers.algorithms.flow_grpo import FlowGRPO, GRPOLossConfig, GRPOObjective, recorded


@dataclass
class GRPOGuardLossConfig(GRPOLossConfig):
    """Settings of GRPO-Guard."""

    loss_mode: Literal["grpo_guard"] = "grpo_guard"


class GuardObjective(GRPOObjective):
    """Flow-GRPO's loss of the normalized ratio, divided by the size of the step -dt.

    The normalized ratio compares the mean of each step with that before the update, which the engine does not record.
    So the trainer always recomputes it: `bypass_mode` is refused.
    """

    compares_means = True

    @override
    def policy_loss(
        self, part: Batch, place: int, log_ratio: Tensor, mean: Tensor, std: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        normalized = grpo.normalized_log_ratio(log_ratio, mean, self.old_mean(part, place, mean), std)
        size = recorded(part, "all_sigmas", place) - recorded(part, "all_sigmas", place, later=1)
        loss, measured = super().policy_loss(part, place, normalized, mean, std)
        return loss / size, measured


class GRPOGuard(FlowGRPO):
    """GRPO-Guard: clips positive and negative updates of all noise levels alike."""

    settings = GRPOGuardLossConfig
    objective_type = GuardObjective
