"""AWM, advantage weighted matching (arXiv:2509.25050).

It trains on final latents at random noise levels, so any sampler works: the flow-matching loss of a sample is its
negative log-likelihood, and the policy gradient weights it by the sample's advantage. Settings of `diffusion_loss`:
`adv_clip_max` (1) limits the absolute advantage, `clip_ratio` (1) the likelihood ratio, which is 1 in the first
optimizer step of an update; `ref_kl_coef` (0) is the weight of the squared distance to the base model's velocity, and
`draws` (4) the number of noise levels per sample and update.
"""

from __future__ import annotations

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
    names={"AWM": JobName("AWM", "2509.25050")},
    in_reference=False,
    near_base="ref_kl_coef",
)
