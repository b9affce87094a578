"""AWM, advantage weighted matching (arXiv:2509.25050).

It trains on final latents at random noise levels, so any sampler works: the flow-matching loss of a sample is its
negative log-likelihood, and the policy gradient weights it by the sample's advantage. The likelihood ratio is 1 in the
first optimizer step of an update.
"""

from verl_omni.settings_schema.declarations import COUNT, NOT_NEGATIVE, POSITIVE
from verl_omni.workers.algorithms.description import (
    ONLINE,
    TRAINED_POLICY_SAMPLES,
    WITHOUT_LIKELIHOOD,
    WITHOUT_STEPS,
    JobName,
    RegisteredAlgorithm,
)

ALGORITHM = RegisteredAlgorithm(
    "verl_omni.workers.algorithms.awm:AWM",
    (*WITHOUT_LIKELIHOOD, ONLINE, TRAINED_POLICY_SAMPLES, WITHOUT_STEPS),
    lambda config: (),
    limits={"clip_ratio": (POSITIVE,), "adv_clip_max": (POSITIVE,), "ref_kl_coef": (NOT_NEGATIVE,), "draws": (COUNT,)},
    names={"AWM": JobName("AWM", "2509.25050")},
    near_base="ref_kl_coef",
)
