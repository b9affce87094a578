"""DiffusionNFT (arXiv:2509.16117)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from verl_omni.settings_schema.declarations import COUNT, NOT_NEGATIVE, POSITIVE
from verl_omni.settings_schema.setting import Limit
from verl_omni.workers.algorithms.description import (
    MODEL,
    ONLINE,
    ROLLOUT,
    WITHOUT_LIKELIHOOD,
    JobName,
    RegisteredAlgorithm,
    RequiredSetting,
    fraction_conflicts,
)

if TYPE_CHECKING:
    from omegaconf import DictConfig


BELOW_ONE = Limit("must be at least 0 and less than 1", lambda value: 0 <= value < 1)
# Arguments of `algos.nft.old_decay`, by the reference's names; the second is `decay_type` 2 in the code of the paper's
# authors.
DECAY_SCHEDULES: dict[str, dict[str, Any]] = {
    "copy": {"rate": 0.0, "most": 0.0},
    "delayed_linear_to_0_999": {"rate": 0.0075, "most": 0.999, "delay": 75},
}


def _conflicts(config: DictConfig) -> Sequence[str]:
    conflicts = []
    schedule = config.algorithm.old_policy_decay_schedule
    interval = config.algorithm.old_policy_update_interval
    if schedule not in (None, *DECAY_SCHEDULES):
        conflicts.append(
            f"algorithm.old_policy_decay_schedule: {schedule} is not supported; write null or "
            f"{' or '.join(DECAY_SCHEDULES)}"
        )
    if not isinstance(interval, int) or isinstance(interval, bool) or interval < 1:
        conflicts.append(f"algorithm.old_policy_update_interval: must be a whole number from 1: {interval}")
    fraction = config.algorithm.timestep_fraction
    return [*conflicts, *([] if fraction is None else fraction_conflicts(fraction))]


ALGORITHM = RegisteredAlgorithm(
    "verl_omni.workers.algorithms.diffusion_nft:DiffusionNFT",
    (
        *WITHOUT_LIKELIHOOD,
        ONLINE,
        RequiredSetting(f"{ROLLOUT}.rollout_adapter", "old", "the old policy must sample"),
        RequiredSetting(f"{MODEL}.policy_state_adapters", ["default", "old"], "it keeps an old policy"),
    ),
    _conflicts,
    limits={
        **dict.fromkeys(("mix_beta", "adv_clip_max", "adaptive_weight_min"), (POSITIVE,)),
        "ref_kl_coef": (NOT_NEGATIVE,),
        "draws": (COUNT,),
        "old_decay_rate": (NOT_NEGATIVE,),
        "old_decay_max": (BELOW_ONE,),
    },
    names={"DiffusionNFT": JobName("DiffusionNFT", "2509.16117")},
    near_base="ref_kl_coef",
    in_reference=True,
)
