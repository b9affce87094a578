"""PURE: settings of one entry of `reward.reward_functions`, besides the scorer's own."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any

TRAINER = "trainer"  # value of a scorer's `device`: the same device as the trained model
COMBINED = "combined"  # what the weighted mean or sum is called among the scores
OWN_SETTINGS = ("path", "name", "weight", "required")


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


def weight_problem(weights: Collection[float]) -> str | None:
    """Why the scores cannot be combined with these weights."""
    total = sum(weights)
    return None if total > 0 else f"reward.reward_functions: the weights must add up to more than 0, not {total:g}"
