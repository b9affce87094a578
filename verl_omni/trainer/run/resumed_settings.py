"""PURE: settings and data of a resumed run that differ from its checkpoint's.

On a cluster, a job that is submitted again under its name continues in its run folder, also after an edit. That may be
what its author wants, such as a lower learning rate, or not.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

# What decides what is learned; not where and how fast, which may differ between attempts.
LEARNED = (
    "actor_rollout_ref.model.path",
    "actor_rollout_ref.model.lora_rank",
    "actor_rollout_ref.model.lora_alpha",
    "actor_rollout_ref.model.lora_adapter_path",
    "actor_rollout_ref.model.target_modules",
    "actor_rollout_ref.model.exclude_modules",
    "actor_rollout_ref.model.algorithm",
    "actor_rollout_ref.model.policy_state_adapters",
    "actor_rollout_ref.model.custom_chat_template",
    "actor_rollout_ref.model.extra_tokenizers",
    "actor_rollout_ref.model.external_lib",
    "actor_rollout_ref.actor.optim",
    "actor_rollout_ref.actor.diffusion_loss",
    "actor_rollout_ref.actor.use_kl_loss",
    "actor_rollout_ref.actor.kl_loss_coef",
    "actor_rollout_ref.actor.grad_clip",
    "actor_rollout_ref.actor.ppo_mini_batch_size",
    "actor_rollout_ref.actor.ppo_epochs",
    "actor_rollout_ref.actor.shuffle",
    "actor_rollout_ref.actor.ema_decay",
    "actor_rollout_ref.rollout.n",
    "actor_rollout_ref.rollout.algo",
    "actor_rollout_ref.rollout.pipeline",
    "actor_rollout_ref.rollout.prompt_length",
    "actor_rollout_ref.rollout.rollout_adapter",
    "actor_rollout_ref.rollout.seed",
    "actor_rollout_ref.rollout.agent.default_agent_loop",
    "algorithm",
    "data.train_files",
    "data.train_batch_size",
    "data.train_max_samples",
    "data.prompt_key",
    "data.custom_cls",
    "data.truncation",
    "data.filter_overlong_prompts",
    "data.apply_chat_template_kwargs",
    "data.shuffle",
    "data.seed",
    "reward.scorer",
    "reward.scorer_kwargs",
    "reward.reward_functions",
    "reward.aggregation",
    "reward.custom_reward_function",
    "reward.reward_manager",
    "reward.reward_model.model_path",
    "trainer.seed",
)
# What decides what an evaluation measures: the curve of the held-out reward has a break where it changes.
EVALUATED = ("actor_rollout_ref.rollout.val_kwargs", "data.val_files", "data.val_max_samples")
OPTIM = "actor_rollout_ref.actor.optim"
SHOWN = 8  # differing settings that a message lists
# Where a scorer runs does not decide what is learned.
_POOL = re.compile(r"reward\.reward_functions\.\w+\.pool(\..*)?")
Content = Mapping[str, Sequence[str | None]]


def describe_changes(before: DictConfig, now: DictConfig, content_before: Content, content_now: Content) -> str:
    """Differences: settings of `LEARNED` and `EVALUATED`, each with both values, and files and folders that they name.

    Empty if nothing differs. Files that have moved, with the same content, do not differ.

    Args:
        content_before, content_now: by setting a digest of each file or folder, None where it was not read.
    """
    earlier = _values(before)
    later = _values(now)
    names = {name for name in earlier.keys() | later.keys() if earlier.get(name) != later.get(name)}
    both = {name: (content_before[name], content_now[name]) for name in content_before.keys() & content_now.keys()}
    known = {name: was == now_is for name, (was, now_is) in both.items() if None not in (*was, *now_is)}
    replaced = sorted(name for name, same in known.items() if not same and name not in names)
    moved = {name for name, same in known.items() if same}
    changed = [
        *(f"the content of {name} is another" for name in replaced),
        *(f"{name} was {earlier.get(name)}, is {later.get(name)}" for name in sorted(names - moved)),
    ]
    others = [f"{len(changed) - SHOWN} others"] if len(changed) > SHOWN else []
    return "; ".join([*changed[:SHOWN], *others])


def _values(config: DictConfig) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for section in (*LEARNED, *EVALUATED):
        _flatten(section, OmegaConf.select(config, section), values)
    values = {name: value for name, value in values.items() if not _POOL.fullmatch(name)}
    if values.get(f"{OPTIM}.lr_scheduler_type") == "constant":
        values.pop(f"{OPTIM}.total_training_steps", None)  # a longer run, whose learning rate does not change
    return values


def _flatten(name: str, value: Any, found: dict[str, Any]) -> None:
    if isinstance(value, DictConfig):
        for key in value:
            _flatten(f"{name}.{key}", value[key], found)
    else:
        found[name] = value
