"""PURE: expected types of settings' values, from their defaults, and for numbers whose default is null.

A script whose variable is empty writes `name=`, which is a text without letters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

ROLLOUT = "actor_rollout_ref.rollout"
# Numbers whose default is null.
NUMBERS = (
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
    f"{ROLLOUT}.agent.num_workers",
    f"{ROLLOUT}.algo.sde_window_seed",
    f"{ROLLOUT}.algo.sde_window_size",
    f"{ROLLOUT}.max_concurrent_requests",
    f"{ROLLOUT}.max_prompt_embed_length",
    f"{ROLLOUT}.pipeline.video_flow_shift",
    "reward.early_stopping_patience",
    "reward.num_workers",
    "trainer.rollout_data_max_samples",
    "trainer.total_epochs",
    "trainer.total_training_steps",
    "trainer.validation_data_max_samples",
)
PAIRS = {f"{ROLLOUT}.algo.sde_window_range": "[0,5]", "actor_rollout_ref.actor.optim.betas": "[0.9,0.999]"}
NEEDED = ("actor_rollout_ref.model.path",)
FILES = ("data.train_files", "data.val_files")  # the first one is needed
CHECKED_ELSEWHERE = "algorithm.rollout_correction."  # where the message has specific advice
# Settings and groups whose default is a number or a switch, and which may be null.
NULLABLE = (
    "actor_rollout_ref.actor.diffusion_loss.",
    "actor_rollout_ref.actor.seed",
    "actor_rollout_ref.model.lora_alpha",
    f"{ROLLOUT}.engine_kwargs.",
    f"{ROLLOUT}.seed",
    f"{ROLLOUT}.val_kwargs.",
    "algorithm.old_policy_update_interval",
    "algorithm.timestep_fraction",
    "data.seed",
    "data.train_max_samples",
    "data.val_files",
    "data.val_max_samples",
    "ray_kwargs.",
    "reward.reward_model.",
    "trainer.max_actor_ckpt_to_keep",
    "trainer.max_log_prob_difference",
    "trainer.max_velocity_difference",
    "trainer.v1.",
)


def kinds(defaults: DictConfig, names: Iterable[str]) -> dict[str, type]:
    """The kind of each setting whose values are checked.

    `bool`, `float` (any number), `tuple` (two numbers), `str` (a path) or `list` (paths of files).
    """
    found: dict[str, type] = dict.fromkeys(NUMBERS, float) | dict.fromkeys(PAIRS, tuple)
    found |= dict.fromkeys(NEEDED, str) | dict.fromkeys(FILES, list)
    for name in names:
        if name.startswith(CHECKED_ELSEWHERE):
            continue
        try:
            default = OmegaConf.select(defaults, name)
        except OmegaConfBaseException:  # refers to a setting that must be given
            continue
        if isinstance(default, bool):
            found[name] = bool
        elif isinstance(default, int | float):
            found[name] = float
    return found


def find_problems(config: DictConfig, known: Mapping[str, type], given: Iterable[str]) -> Iterator[str]:
    """A line for each value of another type.

    Args:
        known: kinds of the settings. given: names of the overrides, also of groups.
    """
    for setting in dict.fromkeys(given):
        for name, kind in known.items():
            if name == setting or name.startswith(f"{setting}."):
                value = OmegaConf.select(config, name)
                if not _fits(name, value, kind):
                    yield f"{name}: {_text(value, _advice(name, kind))}"


def _fits(name: str, value: Any, kind: type) -> bool:
    if kind is str:
        return isinstance(value, str) and bool(value)
    if kind is list:
        files = list(value) if OmegaConf.is_list(value) else [] if value in (None, "") else [value]
        return bool(files or name != FILES[0]) and all(isinstance(file, str) and file for file in files)
    if value is None:
        return may_be_null(name)
    if kind is bool:
        return isinstance(value, bool) or value in (0, 1)
    if kind is tuple:
        return OmegaConf.is_list(value) and len(value) == 2 and all(map(is_number, value))
    return is_number(value)


def may_be_null(name: str) -> bool:
    """Whether a setting whose values are checked may have none."""
    return name in (*NUMBERS, *PAIRS) or name.startswith(NULLABLE)


def is_number(value: Any) -> bool:
    """Whether a value is an integer or a float; a switch is neither."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _advice(name: str, kind: type) -> str:
    if kind is str:
        return "a path"
    if kind is list:
        return "a path, or a list of paths such as [first.jsonl,second.jsonl]"
    return f"two numbers, such as {PAIRS[name]}" if kind is tuple else "true or false" if kind is bool else "a number"


def _text(value: Any, advice: str) -> str:
    if value == "":
        return f"has no value; write {advice}; a variable of the script may be empty"
    shown = f"the text {value!r}" if isinstance(value, str) else "null" if value is None else _plain(value)
    return f"{shown} is not supported; write {advice}"


def _plain(value: Any) -> Any:
    """A value as it is written in an override, if it is a list."""
    if not OmegaConf.is_list(value):
        return value
    return f"[{', '.join('null' if each is None else str(each) for each in value)}]"
