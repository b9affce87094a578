"""PURE: which settings go with which algorithm, and what its batch is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf

FLOW_GRPO, DIFFUSION_NFT, DIFFUSION_DPO = NAMES = ("flow_grpo", "diffusion_nft", "diffusion_dpo")
ROLLOUT, ACTOR, MODEL = "actor_rollout_ref.rollout", "actor_rollout_ref.actor", "actor_rollout_ref.model"


@dataclass(frozen=True, slots=True)
class Need:
    """A setting that an algorithm cannot do without."""

    name: str
    value: Any
    why: str


WITHOUT_LIKELIHOOD = (
    Need(f"{ROLLOUT}.calculate_log_probs", False, "it uses no log-probabilities"),
    Need(
        "trainer.max_log_prob_difference", None, "there are no log-probabilities to compare: the check does not apply"
    ),
    Need(f"{ROLLOUT}.algo.clean_latents", True, "it learns from finished samples"),
    Need(f"{ACTOR}.use_kl_loss", False, "the KL is of Flow-GRPO"),
)
NEEDS = {
    FLOW_GRPO: (
        Need(f"{ROLLOUT}.calculate_log_probs", True, "it compares log-probabilities"),
        Need(f"{ROLLOUT}.rollout_adapter", "default", "the policy that is trained must draw"),
    ),
    DIFFUSION_NFT: (
        *WITHOUT_LIKELIHOOD,
        Need(f"{ROLLOUT}.rollout_adapter", "old", "the old policy must draw"),
        Need(f"{MODEL}.policy_state_adapters", ["default", "old"], "it keeps an old policy"),
    ),
    DIFFUSION_DPO: (
        *WITHOUT_LIKELIHOOD,
        Need(f"{ROLLOUT}.rollout_adapter", "default", "the policy that is trained must draw"),
    ),
}


def contradictions(config: DictConfig) -> list[str]:
    """What does not go with the algorithm, a line for each setting with the value that it needs."""
    loss = config.actor_rollout_ref.actor.diffusion_loss.loss_mode
    found = []
    for need in NEEDS[loss]:
        value = OmegaConf.select(config, need.name)
        if (OmegaConf.to_container(value) if OmegaConf.is_config(value) else value) != need.value:
            found.append(f"{need.name}: {value} does not go with {loss}: {need.why}; it needs {need.value}")
    return found + list(_of_one(loss, config))


def _of_one(loss: str, config: DictConfig) -> Sequence[str]:
    """What only one algorithm asks."""
    rollout, ranks = config.actor_rollout_ref.rollout, config.trainer.nnodes * config.trainer.n_gpus_per_node
    if loss == FLOW_GRPO:
        wrong = [
            (rollout.algo.noise_level <= 0, f"{ROLLOUT}.algo.noise_level: must be positive: {loss} learns from noise"),
            (config.trainer.max_log_prob_difference is None, f"trainer.max_log_prob_difference: {loss} needs a number"),
        ]
    elif loss == DIFFUSION_DPO:
        wrong = [
            (config.actor_rollout_ref.model.lora_rank <= 0, f"{MODEL}.lora_rank: {loss} needs LoRA, to know the base"),
            (rollout.n < 2, f"{ROLLOUT}.n: {loss} compares samples of one prompt: at least 2 are needed"),
            (
                config.data.train_batch_size % ranks != 0,
                f"data.train_batch_size: {ranks} ranks cannot share {config.data.train_batch_size} pairs evenly",
            ),
        ]
    else:
        wrong = []
    return [text for is_so, text in wrong if is_so]
