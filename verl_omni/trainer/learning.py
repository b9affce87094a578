"""PURE: scored samples -> what the actor learns from, for each algorithm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor

from verl_omni.algos import advantages, dpo, nft
from verl_omni.pipelines.registry import training_adapter
from verl_omni.trainer.sample_generation import ScoredSamples
from verl_omni.workers.config import (
    DiffusionDPOLossConfig,
    DiffusionLossConfig,
    DiffusionNFTLossConfig,
    FlowGRPOLossConfig,
)

Batch = dict[str, Tensor]
SEED_STRIDE = 1_000_003


def training_batch(loss: DiffusionLossConfig, samples: ScoredSamples, config: DictConfig, step: int) -> Batch:
    """The tensors of one update, as the algorithm's objective takes them.

    Raises:
        ValueError: a reward is not finite.
    """
    seeds = torch.Generator().manual_seed(config.trainer.seed * SEED_STRIDE + step)
    match loss:
        case FlowGRPOLossConfig():
            return {**samples.tensors, "advantages": _advantages(samples, config)}
        case DiffusionNFTLossConfig():
            good = nft.optimality(_advantages(samples, config), loss.adv_clip_max)
            return {**samples.tensors, "optimality": good, "draw_seeds": _seeds(len(good), seeds)}
        case DiffusionDPOLossConfig():
            best, worst = dpo.pairs(samples.scores, samples.groups)
            preferred = (samples.scores[best] > samples.scores[worst]).float()
            return {
                **_paired(samples.tensors, best, worst),
                "preferred": preferred,
                "draw_seeds": _seeds(len(best), seeds),
            }


def request(loss: DiffusionLossConfig, config: DictConfig, step: int) -> dict[str, Any]:
    """What the algorithm's objective must know of an update beside its batch."""
    match loss:
        case FlowGRPOLossConfig():
            rollout = config.actor_rollout_ref.rollout
            family = training_adapter(config.actor_rollout_ref.model.architecture)
            return {
                "noise_level": rollout.algo.noise_level,
                "sde_type": rollout.algo.sde_type,
                "guidance_scale": family.guidance(rollout.pipeline),
                "tolerance": config.trainer.max_log_prob_difference,
            }
        case DiffusionNFTLossConfig():
            return {"step": step}
        case DiffusionDPOLossConfig():
            return {}


def _advantages(samples: ScoredSamples, config: DictConfig) -> Tensor:
    return advantages.group_advantages(
        samples.scores,
        samples.groups,
        normalize=config.algorithm.norm_adv_by_std_in_grpo,
        global_std=config.algorithm.global_std,
    )


def _paired(tensors: Mapping[str, Tensor], best: Tensor, worst: Tensor) -> Batch:
    """[B, ...] -> [P, 2, ...], the better one first."""
    return {name: torch.stack([tensor[best], tensor[worst]], dim=1) for name, tensor in tensors.items()}


def _seeds(rows: int, generator: torch.Generator) -> Tensor:
    return torch.randint(2**62, (rows,), generator=generator)
