"""Flow-GRPO (arXiv:2505.05470), and the algorithms that differ from it in the sampler."""

from verl_omni.settings_schema.declarations import POSITIVE
from verl_omni.workers.algorithms.description import LIKELIHOOD, JobName, RegisteredAlgorithm, step_conflicts

ALGORITHM = RegisteredAlgorithm(
    "verl_omni.workers.algorithms.flow_grpo:FlowGRPO",
    LIKELIHOOD,
    step_conflicts,
    limits={"clip_ratio": (POSITIVE,), "adv_clip_max": (POSITIVE,)},
    names={
        "FlowGRPO": JobName("Flow-GRPO", "2505.05470", "flow_grpo"),
        "DanceGRPO": JobName("DanceGRPO", "2505.07818", "dance_grpo"),
        "MixGRPO": JobName("MixGRPO", "2507.21802", "mix_grpo", "rollout.sampler.window"),
    },
    in_reference=True,
)
