"""Loads the scorers of `reward.reward_functions`."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from verl_omni.reward_loop.part_settings import only_evaluates, pool_of
from verl_omni.reward_loop.rewards import get_scorer
from verl_omni.reward_loop.rewards.python import load, package_of
from verl_omni.reward_loop.scorer_signature import signature_of
from verl_omni.reward_loop.setting_types import OWN_SETTINGS


@dataclass(frozen=True, slots=True)
class LoadedScorer:
    """A scorer's function, and its settings."""

    function: Callable[..., Any]
    settings: dict[str, Any]

    @property
    def may_change_samples(self) -> bool:
        """Whether it is a function of the user's, which may change the sample that it gets."""
        return not str(getattr(self.function, "__module__", "")).startswith("verl_omni.")


@dataclass(frozen=True, slots=True)
class Part:
    """A scorer with its weight.

    Attributes:
        evaluates: it scores the samples of evaluations only; its weight is 0, and it is not required.
        scorer: None: its pool has loaded it, not this process, in which it may not be possible.
    """

    key: str
    weight: float
    required: bool
    evaluates: bool
    scorer: LoadedScorer | None


def load_part(key: str, settings: Mapping[str, Any]) -> Part:
    """A part of `reward.reward_functions`.

    Raises:
        ValueError: as of `load_scorer`.
    """
    evaluates = only_evaluates(settings)
    return Part(
        key=key,
        weight=0.0 if evaluates else float(settings.get("weight", 1.0)),
        required=not evaluates and bool(settings.get("required", True)),
        evaluates=evaluates,
        scorer=None if pool_of(settings) else load_scorer(key, settings),
    )


def load_scorer(key: str, settings: Mapping[str, Any], device: str | None = None) -> LoadedScorer:
    """The scorer of a part; loading a user's file runs it.

    Args:
        device: value of the setting `device` if the scorer has it; None: the part's own.

    Raises:
        ValueError: the scorer does not exist, or does not take its settings.
    """
    if path := settings.get("path"):
        from verl.utils.import_utils import load_extern_object

        name = settings.get("name") or "compute_score"
        function = load_extern_object(module_path=package_of(path, name), object_name=name)
    else:
        function = get_scorer(settings.get("name") or key)
    scorer_settings = {name: value for name, value in settings.items() if name not in OWN_SETTINGS}
    if device is not None and "device" in signature_of(function).settings:
        scorer_settings["device"] = device
    check_settings(function, scorer_settings, f"reward.reward_functions.{key}")
    if not path and (settings.get("name") or key) == "python":
        function, scorer_settings = resolve("python", scorer_settings)
    return LoadedScorer(function, scorer_settings)


def resolve(name: str, settings: dict[str, Any]) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The scorer called `name` and its settings; of `python`, the user's own function, which may take lists.

    Raises:
        ValueError: the scorer, or the function that `python` names, does not exist, or cannot score.
    """
    if name != "python":
        return get_scorer(name), settings
    function = load(settings["function"])
    check_function(function, settings["function"])
    return function, {key: value for key, value in settings.items() if key != "function"}


def check_settings(scorer: Callable[..., Any], given: Collection[str], where: str) -> None:
    """Refuse settings that the scorer does not take, and a function that cannot score.

    Raises:
        ValueError: a name is unknown or missing, or as of `check_function`; the message has a line for each.
    """
    check_function(scorer, where)
    if problems := signature_of(scorer).problems(given):
        raise ValueError("\n".join(f"{where}.{problem}" for problem in problems))


def check_function(scorer: Callable[..., Any], where: str) -> None:
    """Refuse a function of which no call would give a score.

    Args:
        where: the setting that names it, for the message.

    Raises:
        ValueError: it is a generator, or has parameters that a call by name cannot give.
    """
    if problems := signature_of(scorer).function_problems():
        raise ValueError("\n".join(f"{where}: {problem}" for problem in problems))
