"""PURE: ranges of settings that are numbers. Outside of them, a run would fail late, or train something else."""

from __future__ import annotations

from collections.abc import Iterator

from omegaconf import DictConfig, OmegaConf

from verl_omni.trainer.settings.value_types import is_number
from verl_omni.workers.algorithms.registered import ALGORITHMS

ROLLOUT = "actor_rollout_ref.rollout"
ACTOR = "actor_rollout_ref.actor"
MODEL = "actor_rollout_ref.model"
SAMPLED = (f"{ROLLOUT}.", f"{ROLLOUT}.val_kwargs.")  # samples of training and of evaluations
# The engine treats 0 as "not set", and would use its default.
SIZES = ("height", "width", "num_frames", "num_inference_steps", "max_sequence_length")
POSITIVE = (
    "data.max_prompt_length",
    "data.train_batch_size",
    f"{ACTOR}.diffusion_loss.adv_clip_max",
    f"{ACTOR}.diffusion_loss.clip_ratio",
    f"{ACTOR}.grad_clip",  # at 0 nothing would be learned, and a negative one would turn the gradient round
    f"{ACTOR}.optim.clip_grad",
    f"{ACTOR}.ppo_epochs",
    f"{ACTOR}.ppo_mini_batch_size",
    f"{ROLLOUT}.engine_kwargs.vllm_omni.flow_shift",
    f"{ROLLOUT}.n",
    *(f"{group}pipeline.{name}" for group in SAMPLED for name in (*SIZES, "video_flow_shift")),
    "reward.early_stopping_patience",
)
NOT_NEGATIVE = (
    f"{ACTOR}.kl_loss_coef",
    f"{ACTOR}.optim.eps",
    f"{ACTOR}.optim.lr",
    f"{ACTOR}.optim.weight_decay",
    f"{ACTOR}.ppo_micro_batch_size_per_gpu",
    f"{MODEL}.lora_rank",
    *(f"{group}algo.noise_level" for group in SAMPLED),
    *(f"{group}pipeline.{name}" for group in SAMPLED for name in ("guidance_scale", "true_cfg_scale")),
    "trainer.max_log_prob_difference",
)
# The largest value, and why.
AT_MOST = {f"{MODEL}.lora_rank": (512, "the engine has no larger adapters")}  # `vllm.config.lora.MaxLoRARanks`
# Seeds of which torch's generator on a CPU uses 32 bits: larger ones would be the same as smaller ones.
SEEDS = (f"{ACTOR}.seed", f"{ROLLOUT}.val_kwargs.seed", "data.seed", "trainer.seed")
SEED_END = 2**32
WHOLE = (
    *SEEDS,
    f"{ROLLOUT}.algo.sde_window_seed",
    f"{ROLLOUT}.seed",
    "data.max_prompt_length",
    "data.train_batch_size",
    "data.train_max_samples",
    "data.val_max_samples",
)
# What to write instead.
ADVICE = {
    f"{ACTOR}.grad_clip": "; for gradients that are not clipped, write inf",
    f"{MODEL}.lora_rank": "; 0 trains all weights",
}


def find_problems(config: DictConfig) -> Iterator[str]:
    """Messages about numbers out of range; settings that are null or not given are skipped."""
    for names, least, range_ in ((POSITIVE, False, "must be positive"), (NOT_NEGATIVE, True, "must not be negative")):
        for name in names:
            value = OmegaConf.select(config, name)
            if is_number(value) and not (value > 0 or (least and value == 0)):
                yield f"{name}: {range_}: {value}{ADVICE.get(name, '')}"
    for name, (most, reason) in AT_MOST.items():
        value = OmegaConf.select(config, name)
        if is_number(value) and value > most:
            yield f"{name}: must be at most {most}: {value}; {reason}"
    for name in WHOLE:
        value = OmegaConf.select(config, name)
        if _is_copy(config, name):
            continue  # the setting that it copies is named
        if isinstance(value, float) and not value.is_integer():
            yield f"{name}: must be a whole number: {value}"
        elif is_number(value) and name in SEEDS and not 0 <= value < SEED_END:
            yield f"{name}: must be from 0 to {SEED_END - 1} (2^32 - 1), because a CPU uses 32 bits of a seed: {value}"
    algorithm = ALGORITHMS[config.actor_rollout_ref.actor.diffusion_loss.loss_mode]
    if config.actor_rollout_ref.rollout.n == 1 and algorithm.row == "sample" and config.algorithm.adv_estimator in _OWN:
        yield f"{ROLLOUT}.n: must be at least 2: an advantage compares the samples of a prompt, and would be 0"
    if is_number(share := OmegaConf.select(config, SHARE)) and not 0 <= share <= 1:
        yield f"{SHARE}: must be from 0 to 1: {share}"
    if not is_number(OmegaConf.select(config, SEED)):
        yield f"{SEED}: must be a number: every evaluation draws the same noise from it"
    model = config.actor_rollout_ref.model
    if is_number(model.lora_rank) and model.lora_rank > 0 and is_number(model.lora_alpha) and not model.lora_alpha > 0:
        yield f"{MODEL}.lora_alpha: must be positive: {model.lora_alpha}; the adapter is multiplied by it"


def _is_copy(config: DictConfig, name: str) -> bool:
    group, _, key = name.rpartition(".")
    return OmegaConf.is_interpolation(OmegaConf.select(config, group), key)


SEED = f"{ROLLOUT}.val_kwargs.seed"
SHARE = "reward.max_failed_share"
_OWN = ("flow_grpo", "dance_grpo", "mix_grpo")  # built-in advantage estimators; a user's estimator may take one sample
