"""What an update makes smaller, an objective for each kind of loss."""

from __future__ import annotations

from typing import Any

from verl_omni.workers.actor.objectives.base import Objective
from verl_omni.workers.actor.objectives.dpo import DPOObjective
from verl_omni.workers.actor.objectives.grpo import GRPOObjective
from verl_omni.workers.actor.objectives.nft import NFTObjective
from verl_omni.workers.actor.policy import Policy
from verl_omni.workers.config import (
    DiffusionActorConfig,
    DiffusionDPOLossConfig,
    DiffusionNFTLossConfig,
    FlowGRPOLossConfig,
)

__all__ = ["DPOObjective", "GRPOObjective", "NFTObjective", "Objective", "objective_of"]


def objective_of(policy: Policy, config: DiffusionActorConfig, request: dict[str, Any]) -> Objective:
    """The objective of one update.

    Args:
        request: what the trainer says about this update; its fields are the objective's own.
    """
    match config.diffusion_loss:
        case FlowGRPOLossConfig() as loss:
            coefficient = config.kl_loss_coef if config.use_kl_loss else None
            return GRPOObjective(policy, loss, kl_loss_coef=coefficient, **request)
        case DiffusionNFTLossConfig() as loss:
            return NFTObjective(policy, loss, **request)
        case DiffusionDPOLossConfig() as loss:
            return DPOObjective(policy, loss, **request)
