"""GRPO-Guard (arXiv:2510.22319)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from verl_omni.settings_schema.declarations import POSITIVE
from verl_omni.workers.algorithms.description import (
    LIKELIHOOD,
    RECOMPUTED_MEANS,
    ROLLOUT,
    JobName,
    RegisteredAlgorithm,
    step_conflicts,
)

if TYPE_CHECKING:
    from omegaconf import DictConfig


def _conflicts(config: DictConfig) -> Sequence[str]:
    conflicts = list(step_conflicts(config))
    if config.actor_rollout_ref.rollout.algo.sde_type == "cps":
        conflicts.append(
            f"{ROLLOUT}.algo.sde_type: cps does not go with grpo_guard, which divides by the noise of each step; write "
            "sde or dance_sde"
        )
    return conflicts


ALGORITHM = RegisteredAlgorithm(
    "verl_omni.workers.algorithms.grpo_guard:GRPOGuard",
    (*LIKELIHOOD, RECOMPUTED_MEANS),
    _conflicts,
    limits={"clip_ratio": (POSITIVE,), "adv_clip_max": (POSITIVE,)},
    names={"GRPOGuard": JobName("GRPO-Guard", "2510.22319", "flow_grpo")},
    in_reference=True,
)
