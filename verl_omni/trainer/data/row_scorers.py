"""Scorers that rows name in their column `data_source`, where the settings name none; before anything starts."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from verl_omni.reward_loop.rewards import SCORERS, get_scorer
from verl_omni.reward_loop.scorer_signature import takes_groups
from verl_omni.trainer.data import prompt_files
from verl_omni.trainer.settings.reference_modules import DATASET, MANAGERS, ONE
from verl_omni.verl_names import AGENT_LOOP

HELD_OUT = "data.val_files"
COLUMN = "data_source"
LOOP = "agent_name"
ADVICE = "write reward.custom_reward_function.path, or reward.scorer for a built-in one"


def check(config: DictConfig) -> dict[str, str]:
    """Check that every row has a scorer.

    Training on pairs of a data set needs none. Held-out rows without one are not evaluated then: `data.val_files`
    becomes null.

    Args:
        config: settings of the trainer, whose files of prompts were checked.

    Returns:
        The setting that has no effect then, with the reason.

    Raises:
        InvalidPromptFile: a row names no scorer; the message says what to write.
    """
    data = config.data
    if not _rows_decide(config) or OmegaConf.select(data, "custom_cls.path") != DATASET["path"]:
        return {}
    online = config.algorithm.sample_source == "online"
    problem = _problem((data.train_files, data.val_files) if online else (data.val_files,), data.prompt_key)
    if problem and online:
        raise prompt_files.InvalidPromptFile(problem)
    if problem:
        data.val_files = None
    return {HELD_OUT: f"held-out samples are not evaluated, {problem}"} if problem else {}


def _rows_decide(config: DictConfig) -> bool:
    """Whether a row's data source is its scorer: the settings name none, and the agent loop leaves scoring to them."""
    reward = config.reward
    agent = config.actor_rollout_ref.rollout.agent
    manager = reward.reward_manager
    is_own_manager = manager.source == "importlib" and manager.module.path == MANAGERS and manager.name == ONE
    named = reward.scorer is not None or reward.custom_reward_function.path is not None
    return is_own_manager and not named and agent.default_agent_loop == AGENT_LOOP


def _problem(groups: Sequence[Any], prompt_key: str) -> str | None:
    """The first row that names no scorer, and what to do. A loop that a row chooses may score it itself."""
    is_group_wise = cache(lambda name: name in SCORERS and takes_groups(get_scorer(name)))
    for files in groups:
        for file in [files] if isinstance(files, str) else files or ():
            for location, row in prompt_files.rows(Path(file), prompt_key, COLUMN, LOOP):
                name = row.get(COLUMN)
                if name not in SCORERS and not row.get(LOOP):
                    why = f"its column {COLUMN} names no scorer: {name}" if name else f"it has no column {COLUMN}"
                    return f"{location}: no reward function is given, and {why}; {ADVICE}"
                if is_group_wise(name):
                    return f"{location}: {name} compares the samples of a prompt, so it must score all rows; {ADVICE}"
    return None
