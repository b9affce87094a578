"""PURE: what a step or an evaluation measured -> the numbers of its line."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor


class StaleSample(RuntimeError):
    """A sample was made by other weights than those that were last published."""


class StaleReplica(RuntimeError):
    """A rollout replica serves other weights than those that were last published."""


def replica_versions(found: Sequence[int | None], published: int) -> dict[str, int]:
    """Lowest and highest version that replicas serve after an update.

    Raises:
        StaleReplica: one does not serve what was published; the message has all versions.
    """
    if set(found) != {published}:
        raise StaleReplica(f"weight version {published} was published, and the replicas serve {list(found)}")
    return {"weights/min_replica_version": published, "weights/max_replica_version": published}


def check_versions(stamps: Sequence[Any], expected: int) -> None:
    """Every sample must carry the version of the weights that were published last.

    Raises:
        StaleSample: one does not; the message counts them.
    """
    wrong = [stamp for stamp in stamps if stamp != expected]
    if wrong:
        raise StaleSample(
            f"{len(wrong)} of {len(stamps)} samples carry weight version {sorted({str(s) for s in wrong})}, "
            f"expected {expected}"
        )


def rewards(scores: Tensor, extras: Mapping[str, Sequence[Any]], prefix: str = "") -> dict[str, float]:
    """Mean and spread of the reward [B], and the mean of every numeric extra a scorer gave."""
    made = {f"{prefix}reward/mean": scores.mean().item(), f"{prefix}reward/std": _std(scores)}
    for name, values in extras.items():
        if all(isinstance(value, (int, float, np.number, bool)) for value in values):
            made[f"{prefix}reward/{name}/mean"] = float(np.mean([float(value) for value in values]))
    return made


def evaluation(scores: Tensor, extras: Mapping[str, Sequence[Any]]) -> dict[str, float]:
    """An evaluation's line: mean, standard error and number, and the extras' means."""
    made = rewards(scores, extras, prefix="val/")
    spread = made.pop("val/reward/std")
    named = {name.replace("val/reward/", "val/") if name.count("/") > 2 else name: v for name, v in made.items()}
    return {**named, "val/reward/stderr": spread / math.sqrt(len(scores)), "val/n": len(scores)}


def eta(seconds_per_step: Sequence[float], remaining: int) -> float | None:
    """Seconds left, from the median of the recent steps."""
    return float(np.median(seconds_per_step[-10:])) * remaining if seconds_per_step else None


def _std(values: Tensor) -> float:
    return values.std().item() if len(values) > 1 else 0.0


def mean_of(ranks: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Average over the ranks, by name."""
    return {name: float(np.mean(values)) for name, values in ranks.items()}
