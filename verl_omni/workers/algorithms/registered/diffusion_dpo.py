"""Diffusion-DPO (arXiv:2311.12908), online or on pairs of a data set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from verl_omni.settings_schema.declarations import COUNT, POSITIVE
from verl_omni.workers.algorithms.description import (
    ROLLOUT,
    TRAINED_POLICY_SAMPLES,
    WITHOUT_ADVANTAGES,
    WITHOUT_LIKELIHOOD,
    WITHOUT_STEPS,
    JobName,
    RegisteredAlgorithm,
)

if TYPE_CHECKING:
    from omegaconf import DictConfig


def _conflicts(config: DictConfig) -> Sequence[str]:
    if config.algorithm.sample_source == "online" and config.actor_rollout_ref.rollout.n < 2:
        return [f"{ROLLOUT}.n: diffusion_dpo compares samples of one prompt: at least 2 are needed"]
    return []


ALGORITHM = RegisteredAlgorithm(
    "verl_omni.workers.algorithms.diffusion_dpo:DiffusionDPO",
    (*WITHOUT_LIKELIHOOD, TRAINED_POLICY_SAMPLES, WITHOUT_ADVANTAGES, WITHOUT_STEPS),
    _conflicts,
    row="pair",
    limits={"dpo_beta": (POSITIVE,), "draws": (COUNT,)},
    names={"DiffusionDPO": JobName("Diffusion-DPO, online or offline", "2311.12908")},
    near_base="dpo_beta",
    in_reference=True,
)
