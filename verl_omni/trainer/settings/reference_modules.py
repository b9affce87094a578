"""Modules of the reference that settings name: its scorers, its reward managers, and its data sets."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from verl_omni.reward_loop.published_scorers import IMPLIED, PUBLISHED, RENAMED, RETRIES, SERVER_SETTINGS
from verl_omni.settings_schema.declarations import SEVERAL_SCORERS
from verl_omni.settings_schema.layout import default_of

# A module of the reference's scorers, as a file or by name.
_SCORER = re.compile(r"(?:pkg://|.*/)?verl_omni[./]utils[./]reward_score[./](?P<module>\w+?)(?:\.py)?")
_MANAGERS = re.compile(r"(?:pkg://|.*/)?verl_omni[./]reward_loop[./]reward_manager(?:[./]\w+?)*?(?:\.py)?")
_DATASETS = re.compile(r"(?:pkg://|.*/)?verl_omni[./]utils[./]dataset[./]\w+?(?:\.py)?")
DATASET = default_of("data.custom_cls")
MANAGERS = default_of("reward.reward_manager.module.path")
ONE = default_of("reward.reward_manager.name")
OWN_FOLDER = Path(__file__).parents[2] / "utils" / "reward_score"  # the modules of this package at the same paths
FUNCTION = "reward.custom_reward_function"
PARTS = "reward.reward_functions"


def scorer_name(path: str, function: str | None) -> str | None:
    """The name here of a published module of the reference; None for any other path, and for a user's own file.

    A file that exists is the user's own if another function of it is called than the published one.
    """
    match = _SCORER.fullmatch(path)
    if match is None or match["module"] not in PUBLISHED:
        return None
    name, published = PUBLISHED[match["module"]]
    file = Path(path)
    is_own = function != published and file.is_file() and file.resolve().parent != OWN_FOLDER
    return None if is_own else name


def replaced(given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The settings that name a file or module instead of which a built-in scorer runs, with what to do.

    Args:
        given: values by the names of the overrides.
    """
    several = given.get(PARTS)
    named = {f"{PARTS}.{key}.path": part for key, part in (several if isinstance(several, Mapping) else {}).items()}
    for name in given:
        if name.startswith(f"{PARTS}.") and name.endswith(".path"):
            group = name.removesuffix(".path")
            named[name] = {"path": given[name], "name": given.get(f"{group}.name")}
    named[f"{FUNCTION}.path"] = {"path": given.get(f"{FUNCTION}.path"), "name": given.get(f"{FUNCTION}.name")}
    for setting, part in named.items():
        if not isinstance(part, Mapping) or not part.get("path"):
            continue
        path = str(part["path"])
        if scorer := scorer_name(path, part.get("name") or "compute_score"):
            yield setting, f"the built-in scorer {scorer} runs instead of {path}; to run a file, give it another name"


def is_placeholder(manager: str, path: Any) -> bool:
    """Whether `custom_reward_function.path` only stands for the scorers of `reward_functions`.

    Args:
        manager: name of the reward manager.
    """
    return manager == SEVERAL_SCORERS and path is not None and bool(_MANAGERS.fullmatch(str(path)))


def use_own_dataset(data: DictConfig) -> None:
    """Replace the reference's data sets by this project's, which reads prompts and pairs of images."""
    path = OmegaConf.select(data, "custom_cls.path")  # an override may have removed it
    if path is not None and _DATASETS.fullmatch(str(path)):
        data.custom_cls.update(DATASET)


def use_built_in(reward: DictConfig) -> None:
    """Replace the modules of the reference by what is built in: its scorers, its reward managers, and a placeholder.

    A scorer's function needs no name then: each module has one. Several scorers choose their reward manager, as there.
    """
    function = reward.custom_reward_function
    module = reward.reward_manager.module
    if _MANAGERS.fullmatch(str(module.path)):
        module.path = MANAGERS
    if _names_only_several(reward):
        reward.reward_manager.name = SEVERAL_SCORERS
    if is_placeholder(reward.reward_manager.name, function.path):
        function.path = None
    elif function.path is not None and (name := scorer_name(str(function.path), function.name)) is not None:
        reward.scorer = name
        function.path = None
        with open_dict(reward.scorer_kwargs):
            reward.scorer_kwargs.update(function.reward_kwargs)
        function.reward_kwargs = {}
        _translate(name, reward.scorer_kwargs)
    for part in reward.reward_functions.values():
        path = part.get("path") if OmegaConf.is_dict(part) else None
        if path is not None and (name := scorer_name(str(path), part.get("name") or "compute_score")) is not None:
            with open_dict(part):
                part.path = None
                part.name = name
            _translate(name, part)


def _names_only_several(reward: DictConfig) -> bool:
    """Whether `reward_functions` are the only scorers, and the manager is the one that is there by default."""
    manager = reward.reward_manager
    path = reward.custom_reward_function.path
    is_default = manager.source == "importlib" and manager.module.path == MANAGERS and manager.name == ONE
    return (
        is_default
        and bool(reward.reward_functions)
        and reward.scorer is None
        and (path is None or is_placeholder(SEVERAL_SCORERS, path))
    )


def _translate(name: str, given: DictConfig) -> None:
    """Give the settings of a published scorer the names here, and add those that its scores need."""
    with open_dict(given):
        for there, here in (SERVER_SETTINGS if name == "http" else RENAMED.get(name, {})).items():
            if there in given:
                given[here] = given.pop(there)
        if name == "http" and RETRIES in given:
            retries = given.pop(RETRIES)
            given.attempts = retries + 1 if type(retries) is int else retries  # another type is refused later
        for setting, value in IMPLIED.get(name, {}).items():
            given.setdefault(setting, value)
