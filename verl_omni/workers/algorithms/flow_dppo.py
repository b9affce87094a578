"""Flow-DPPO (arXiv:2606.11025): Flow-GRPO with a limit on the divergence of each step instead of a clipped ratio."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor
from typing_extensions import override

from verl_omni.algos import grpo
from verl_omni.workers.actor.policy import Batch
from verl_omni.workers.algorithms.flow_grpo import StepAlgorithm, StepLossConfig, StepObjective
from verl_omni.workers.config.diffusion.file_defaults import FROM_FILE


@dataclass
class FlowDPPOLossConfig(StepLossConfig):
    """Settings of Flow-DPPO, explained in `trainer/config/loss/flow_dppo.yaml`."""

    loss_mode: Literal["flow_dppo"] = "flow_dppo"
    kl_mask_threshold: float = FROM_FILE


class DPPOObjective(StepObjective[FlowDPPOLossConfig]):
    """Flow-GRPO's loss without clipping, of the steps that the divergence mask leaves.

    The divergence is the KL of two normal densities with the standard deviation of the step, so it needs the means
    before the update. The trainer always recomputes them: `bypass_mode` is refused.
    """

    compares_means = True

    @override
    def policy_loss(
        self, part: Batch, place: int, log_ratio: Tensor, mean: Tensor, std: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        divergence = grpo.gaussian_kl(mean.detach(), self.old_mean(part, place, mean), std)
        threshold = self.config.kl_mask_threshold
        limit = self.config.adv_clip_max
        advantages = part["advantages"]
        loss, excluded = grpo.masked(log_ratio, advantages, divergence, threshold=threshold, adv_clip_max=limit)
        # One process may not compute rows without an advantage, so they do not count where several ranks do either.
        counted = divergence * (advantages != 0)
        return loss, {"difference": log_ratio.detach(), "clip_fraction": excluded.float(), "kl_to_old": counted}


class FlowDPPO(StepAlgorithm[FlowDPPOLossConfig]):
    """Flow-DPPO: limits the divergence from the policy before the update."""

    settings = FlowDPPOLossConfig
    objective_type = DPPOObjective
