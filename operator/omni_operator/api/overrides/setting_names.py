"""Names of the trainer's settings, and what their values may be, from `setting_names.json`.

`make crds` writes that file from the trainer's configuration, with the last parts of names by their group.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from verl_omni.pipelines.registry import FAMILIES

_PARTS: dict[str, Any] = json.loads(files(__package__).joinpath("setting_names.json").read_text(encoding="utf-8"))


def _names(groups: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(f"{group}.{last}" if group else last for group, lasts in groups.items() for last in lasts.split())


# Settings of every algorithm, and settings of one algorithm, by the trainer's name of it.
COMMON = _names(_PARTS["common"])
BY_LOSS = {loss: _names(groups) for loss, groups in _PARTS["by_loss"].items()}
# Groups whose keys the user chooses.
OPEN = _names(_PARTS["open"])
# What this project registers, by the setting that names one of them.
REGISTERED: dict[str, list[str]] = {"actor_rollout_ref.model.architecture": sorted(FAMILIES), **_PARTS["registered"]}
# Settings that must have one value with some algorithms, the value, why, and the trainer's names of the algorithms.
REQUIRED: list[tuple[str, object, str, list[str]]] = _PARTS["required"]
NUMBERS = _names(_PARTS["numbers"])
SWITCHES = _names(_PARTS["switches"])  # true or false
PAIRS: dict[str, str] = _PARTS["pairs"]  # two numbers, with an example
NEVER_NULL = _names(_PARTS["never_null"])  # of the numbers and switches
# Groups of settings, and those that are empty by default, so that null means empty.
GROUPS = _names(_PARTS["groups"])
EMPTY_GROUPS = _names(_PARTS["empty_groups"])
# Numbers that must be positive, or must not be negative, with what to write instead.
POSITIVE: dict[str, str] = _PARTS["positive"]
NOT_NEGATIVE: dict[str, str] = _PARTS["not_negative"]
# Settings of the reference, by the setting here that has their value. In a name, `.*` stands for a group.
ELSEWHERE: dict[str, str] = _PARTS["elsewhere"]
# Settings of the reference that have no effect here.
WITHOUT_EFFECT = _names(_PARTS["without_effect"])
# The only values that are accepted, what to write instead of others, and the settings.
REJECTED: list[tuple[list[object], str, tuple[str, ...]]] = [
    (accepted, advice, _names(groups)) for accepted, advice, groups in _PARTS["rejected"]
]
