"""Flow-DPPO (arXiv:2606.11025)."""

from verl_omni.settings_schema.declarations import NOT_NEGATIVE, POSITIVE
from verl_omni.workers.algorithms.description import (
    LIKELIHOOD,
    RECOMPUTED_MEANS,
    JobName,
    RegisteredAlgorithm,
    step_conflicts,
)

ALGORITHM = RegisteredAlgorithm(
    "verl_omni.workers.algorithms.flow_dppo:FlowDPPO",
    (*LIKELIHOOD, RECOMPUTED_MEANS),
    step_conflicts,
    limits={"kl_mask_threshold": (NOT_NEGATIVE,), "adv_clip_max": (POSITIVE,)},
    names={"FlowDPPO": JobName("Flow-DPPO", "2606.11025", "flow_grpo")},
    in_reference=True,
)
