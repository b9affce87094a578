"""PURE: names of a run's scorers in error messages."""

from collections.abc import Callable
from typing import Any

from omegaconf import OmegaConf

from verl_omni.utils.root_cause import describe_error


def scorer_name(reward: Any, data_source: str) -> str:
    """`reward.scorer`, of `python` the user's function, and without either the data source.

    Args:
        reward: the section of the settings.
    """
    name = str(reward.get("scorer") or data_source)
    function = OmegaConf.select(reward, "scorer_kwargs.function") if name == "python" else None
    return str(function or name)


def custom_name(reward: Any, function: Callable[..., Any]) -> str:
    """`path/to/file.py:name` of `reward.custom_reward_function`, or the name of a function that was passed."""
    path = OmegaConf.select(reward, "custom_reward_function.path")
    if path is None:
        return str(getattr(function, "__qualname__", type(function).__name__))
    return f"{path}:{OmegaConf.select(reward, 'custom_reward_function.name')}"


def scorer_names(reward: Any) -> str:
    """All scorers of a run, for an error message when it is unknown which one failed."""
    if path := OmegaConf.select(reward, "custom_reward_function.path"):
        return f"{path}:{OmegaConf.select(reward, 'custom_reward_function.name')}"
    parts = OmegaConf.select(reward, "reward_functions") or {}
    return ", ".join(parts) or scorer_name(reward, "of the data source")


def lost_worker_text(number: int, reward: Any, error: BaseException) -> str:
    """The error of a reward worker whose process has ended, for which a scorer may be the cause."""
    return (
        f"reward worker {number} is gone: {describe_error(error)}; its process ended, in which the scorer runs "
        f"({scorer_names(reward)})"
    )
