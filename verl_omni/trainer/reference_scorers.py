"""PURE: modules of the reference that settings name: its scorers, its reward managers, and its data sets."""

from __future__ import annotations

import re
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

# A module of the reference's scorers, as a file or by name.
_SCORER = re.compile(r"(?:pkg://|.*/)?verl_omni[./]utils[./]reward_score[./](?P<name>\w+?)(?:\.py)?")
_MANAGERS = re.compile(r"(?:pkg://|.*/)?verl_omni[./]reward_loop[./]reward_manager(?:[./]\w+?)*?(?:\.py)?")
_DATASETS = re.compile(r"(?:pkg://|.*/)?verl_omni[./]utils[./]dataset[./]\w+?(?:\.py)?")
DATASET = {"path": "pkg://verl_omni.trainer.data", "name": "DiffusionRLDataset"}
MODULE = "pkg://verl_omni.reward_loop.reward_manager"
ONE, SEVERAL = "VisualRewardManager", "MultiVisualRewardManager"
# How the names of its scorers' modules begin (`http_scorer_client`, `choice_reward`), and the names here. Those that do
# not exist here are refused with the reason.
NAMES = {
    "choice": "choice", "clap": "clap", "genrm_ocr": "genrm_ocr", "hpsv3": "hpsv3", "http": "http",
    "imagebind": "imagebind", "jpeg_compressibility": "jpeg_compressibility", "latent": "latent_http",
    "pickscore": "pickscore", "unified_reward": "unified_reward",
}  # fmt: skip
SETTINGS = {"http": {"server_url": "url"}}  # settings of a scorer that have another name here
# Settings of ours that give its scorer. The mean of its PickScore is 0.76 for random images (verl-omni#346), as with
# Flow-GRPO's division by 26; without one it would be 20.
IMPLIED: dict[str, dict[str, Any]] = {"http": {"protocol": "pickle"}, "pickscore": {"score_scale": 1 / 26}}


def scorer_name(path: str) -> str | None:
    """The name here of a module of the reference's scorers; None for any other path."""
    match = _SCORER.fullmatch(path)
    return next((own for start, own in NAMES.items() if match["name"].startswith(start)), None) if match else None


def is_placeholder(manager: str, path: Any) -> bool:
    """Whether `custom_reward_function.path` only stands for the scorers of `reward_functions`.

    Args:
        manager: name of the reward manager.
    """
    return manager == SEVERAL and path is not None and bool(_MANAGERS.fullmatch(str(path)))


def use_own_dataset(data: DictConfig) -> None:
    """Replace the reference's data sets by this project's, which reads prompts and pairs of images."""
    path = OmegaConf.select(data, "custom_cls.path")  # an override may have removed it
    if path is not None and _DATASETS.fullmatch(str(path)):
        data.custom_cls.update(DATASET)


def use_built_in(reward: DictConfig) -> None:
    """Replace the modules of the reference by what is built in: its scorers, its reward managers, and a placeholder.

    A scorer's function needs no name then: each module has one. Several scorers choose their reward manager, as there.
    """
    function, module = reward.custom_reward_function, reward.reward_manager.module
    if _MANAGERS.fullmatch(str(module.path)):
        module.path = MODULE
    if _names_only_several(reward):
        reward.reward_manager.name = SEVERAL
    if is_placeholder(reward.reward_manager.name, function.path):
        function.path = None
    elif function.path is not None and (name := scorer_name(str(function.path))) is not None:
        reward.scorer, function.path = name, None
        with open_dict(reward.scorer_kwargs):
            for there, value in function.reward_kwargs.items():
                reward.scorer_kwargs[SETTINGS.get(name, {}).get(there, there)] = value
        function.reward_kwargs = {}
        _imply(name, reward.scorer_kwargs)
    for part in reward.reward_functions.values():
        path = part.get("path") if OmegaConf.is_dict(part) else None
        if path is not None and (name := scorer_name(str(path))) is not None:
            with open_dict(part):
                part.path, part.name = None, name
                for there, here in SETTINGS.get(name, {}).items():
                    if there in part:
                        part[here] = part.pop(there)
                _imply(name, part)


def _names_only_several(reward: DictConfig) -> bool:
    """Whether `reward_functions` are the only scorers, and the manager is the one that is there by default."""
    manager, path = reward.reward_manager, reward.custom_reward_function.path
    own = manager.source == "importlib" and manager.module.path == MODULE and manager.name == ONE
    return (
        own
        and bool(reward.reward_functions)
        and reward.scorer is None
        and (path is None or is_placeholder(SEVERAL, path))
    )


def _imply(name: str, given: DictConfig) -> None:
    with open_dict(given):
        for setting, value in IMPLIED.get(name, {}).items():
            given.setdefault(setting, value)
