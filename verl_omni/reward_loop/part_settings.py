"""PURE: settings of one entry of `reward.reward_functions`, besides the scorer's own."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

TRAINER = "trainer"  # value of a scorer's `device`: the same device as the trained model
COMBINED = "combined"  # what the weighted mean or sum is called among the scores
OWN_SETTINGS = ("path", "name", "weight", "required", "use")
EVALUATION = "evaluation"  # value of `use`: scored in evaluations only, and in no reward
USES = ("training", EVALUATION)


def part_problems(key: str, given: Any) -> Iterator[str]:
    """Messages about invalid settings of the part `key`."""
    where = f"reward.reward_functions.{key}"
    if not isinstance(given, Mapping):
        shown = "null" if given is None else given
        yield f"{where}: must be a group of settings, such as {{name: jpeg, weight: 0.5}}, not {shown}"
        return
    if key == COMBINED:
        yield f"{where}: the reward of all scorers has this name; choose another one"
    weight = given.get("weight", 1.0)
    required = given.get("required", True)
    if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not math.isfinite(weight):
        yield f"{where}.weight: must be a finite number, not {weight}"
    if not isinstance(required, bool):
        yield f"{where}.required: must be true or false, not {required}"
    if given.get("use", USES[0]) not in USES:
        yield f"{where}.use: {given['use']!r} is not one of {', '.join(USES)}"
    if only_evaluates(given):
        for name in ("weight", "required"):
            if name in given:
                yield f"{where}.{name}: is not read with use={EVALUATION}, whose scores are in no reward; remove it"


def only_evaluates(given: Mapping[str, Any]) -> bool:
    """Whether a part scores the samples of evaluations only."""
    return given.get("use") == EVALUATION


def held_out_scorers(parts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The keys of parts that score the samples of evaluations only."""
    return [key for key, given in parts.items() if only_evaluates(given)]


def weight_problem(parts: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Why the scores cannot be combined with the parts' weights."""
    total = sum(given.get("weight", 1.0) for given in parts.values() if not only_evaluates(given))
    return None if total > 0 else f"reward.reward_functions: the weights must add up to more than 0, not {total:g}"
