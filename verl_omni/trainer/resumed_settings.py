"""PURE: which settings of a resumed run differ from those that its checkpoint was trained with.

On a cluster, a job that is submitted again under its name continues in its run folder, also after an edit. That may be
what its author wants, such as a lower learning rate, or not.
"""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig, OmegaConf

# What decides what is learned; not where and how fast, which may differ between attempts.
LEARNED = (
    "actor_rollout_ref.model.path", "actor_rollout_ref.model.lora_rank", "actor_rollout_ref.model.lora_alpha",
    "actor_rollout_ref.model.target_modules", "actor_rollout_ref.model.exclude_modules",
    "actor_rollout_ref.model.algorithm", "actor_rollout_ref.actor.optim", "actor_rollout_ref.actor.diffusion_loss",
    "actor_rollout_ref.actor.use_kl_loss", "actor_rollout_ref.actor.kl_loss_coef", "actor_rollout_ref.actor.grad_clip",
    "actor_rollout_ref.actor.ppo_mini_batch_size", "actor_rollout_ref.actor.ppo_epochs",
    "actor_rollout_ref.actor.ema_decay", "actor_rollout_ref.rollout.n", "actor_rollout_ref.rollout.algo",
    "actor_rollout_ref.rollout.pipeline", "actor_rollout_ref.rollout.seed", "algorithm", "data.train_files",
    "data.train_batch_size", "data.train_max_samples", "data.shuffle", "data.seed", "reward.reward_functions",
    "reward.aggregation", "reward.custom_reward_function", "trainer.seed",
)  # fmt: skip
SHOWN = 8  # of the settings that differ


def describe_changes(before: DictConfig, now: DictConfig) -> str:
    """The settings of `LEARNED` that differ, each with both values; empty if there are none."""
    earlier, later = _values(before), _values(now)
    names = sorted(name for name in earlier.keys() | later.keys() if earlier.get(name) != later.get(name))
    shown = [f"{name} was {earlier.get(name)}, is {later.get(name)}" for name in names[:SHOWN]]
    return "; ".join([*shown, *([f"{len(names) - SHOWN} others"] if len(names) > SHOWN else [])])


def _values(config: DictConfig) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for section in LEARNED:
        _flatten(section, OmegaConf.select(config, section), found)
    return found


def _flatten(name: str, value: Any, found: dict[str, Any]) -> None:
    if isinstance(value, DictConfig):
        for key in value:
            _flatten(f"{name}.{key}", value[key], found)
    else:
        found[name] = value
