"""PURE: metrics of a step or an evaluation."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from verl_omni.trainer.metrics import collapse
from verl_omni.utils.metrics.image_statistics import ImageStatistics, thumbnail_diversity
from verl_omni.utils.metrics.metric_names import combine

NUMBERS = (int, float, np.number, bool)


class StaleSample(RuntimeError):
    """A sample has another weight version than the last published one."""


class StaleReplica(RuntimeError):
    """A rollout replica serves another weight version than the last published one."""


def replica_versions(found: Sequence[int | None], published: int) -> dict[str, int]:
    """Metrics of the lowest and highest weight version that replicas serve; none while no replica answers.

    Raises:
        StaleReplica: a replica does not serve `published`; the message lists all versions.
    """
    if not found:
        return {}
    if set(found) != {published}:
        raise StaleReplica(f"published weight version {published}, but the replicas serve {list(found)}")
    return {"weights/min_replica_version": published, "weights/max_replica_version": published}


def check_versions(stamps: Sequence[Any], expected: int) -> None:
    """Check that every sample has the weight version `expected`.

    Raises:
        StaleSample: a sample has another; the message counts them.
    """
    wrong = [stamp for stamp in stamps if stamp != expected]
    if wrong:
        raise StaleSample(
            f"{len(wrong)} of {len(stamps)} samples carry weight version {sorted({str(s) for s in wrong})}, "
            f"expected {expected}"
        )


def rewards(scores: Tensor, extras: Mapping[str, Sequence[Any]], prefix: str = "") -> dict[str, float]:
    """Mean and standard deviation of the reward [B], and of every numeric extra a scorer gave.

    Each is over the samples that have it. If some lack it, `reward/unscored` says how many have no reward (NaN), and
    `reward/<extra>/n` how many have that extra, as a finite number.
    """
    known = scored(scores)
    metrics: dict[str, float] = {f"{prefix}reward/mean": known.mean().item()}
    if len(known) > 1:  # the deviation of one sample is undefined
        metrics[f"{prefix}reward/std"] = known.std().item()
    if len(known) < len(scores):
        metrics[f"{prefix}reward/unscored"] = len(scores) - len(known)
    for name, values in extras.items():
        numbers = [value for value in _numbers(values) if math.isfinite(value)]
        if not numbers:
            continue
        metrics[f"{prefix}reward/{name}/mean"] = float(np.mean(numbers))
        if len(numbers) > 1:
            metrics[f"{prefix}reward/{name}/std"] = float(np.std(numbers, ddof=1))
        if len(numbers) < len(values):
            metrics[f"{prefix}reward/{name}/n"] = len(numbers)
    return metrics


def scored(scores: Tensor) -> Tensor:
    """The rewards of the samples that have one, [b]."""
    return scores[~scores.isnan()]


def not_finite(extras: Mapping[str, Sequence[Any]]) -> dict[str, int]:
    """The numeric extras that are NaN or infinite for some samples, with the number of these samples."""
    counts = {name: sum(not math.isfinite(value) for value in _numbers(values)) for name, values in extras.items()}
    return {name: count for name, count in counts.items() if count}


def _numbers(values: Sequence[Any]) -> list[float]:
    """The values of an extra without None; empty if one is no number."""
    numbers = [value for value in values if value is not None]
    return [float(value) for value in numbers] if all(isinstance(value, NUMBERS) for value in numbers) else []


def evaluation(scores: Tensor, extras: Mapping[str, Sequence[Any]]) -> dict[str, float]:
    """Metrics of an evaluation: number of samples with a reward, means and standard errors of it and of the extras."""
    metrics = rewards(scores, extras, prefix="val/")
    count = len(scored(scores))
    shown_metrics: dict[str, float] = {}
    for name, value in metrics.items():
        # An extra that is called `reward` keeps its whole name: the shorter one names the reward itself.
        is_extra = name.count("/") > 2 and name.rpartition("/")[0] != "val/reward/reward"
        shown = name.replace("val/reward/", "val/") if is_extra else name
        if not name.endswith("/std"):
            shown_metrics[shown] = value
            continue
        subject = name.removesuffix("/std")
        samples = count if subject == "val/reward" else metrics.get(f"{subject}/n", len(scores))
        shown_metrics[f"{shown.removesuffix('/std')}/stderr"] = value / math.sqrt(samples)
    return shown_metrics | {"val/n": count}


def reward_spread(scores: Tensor, groups: Sequence[str]) -> dict[str, float]:
    """How the rewards of a prompt's samples differ; empty where no prompt has two rewards.

    The mean over prompts of their standard deviation, and the number of prompts whose samples all have the same one.
    """
    by_prompt: dict[str, list[float]] = {}
    for group, score in zip(groups, scores.tolist(), strict=True):
        if not math.isnan(score):
            by_prompt.setdefault(group, []).append(score)
    compared = [values for values in by_prompt.values() if len(values) > 1]
    if not compared:
        return {}
    spread = float(np.mean([np.std(values) for values in compared]))
    return {
        collapse.REWARD_SPREAD: spread,
        "reward/constant_prompts": sum(len(set(values)) == 1 for values in compared),
    }


def image_statistics(
    statistics: Sequence[ImageStatistics], groups: Sequence[str], prefix: str = ""
) -> dict[str, float]:
    """Means of the samples' statistics; `images/diversity` is the mean over prompts with several samples.

    Empty for latents.
    """
    if not statistics:
        return {}
    numbers = [sample.numbers() for sample in statistics]
    means = {f"{prefix}images/{name}": float(np.mean([values[name] for values in numbers])) for name in numbers[0]}
    by_prompt: dict[str, list[ImageStatistics]] = {}
    for group, sample in zip(groups, statistics, strict=True):
        by_prompt.setdefault(group, []).append(sample)
    spreads = [thumbnail_diversity(samples) for samples in by_prompt.values() if len(samples) > 1]
    return means | ({f"{prefix}images/diversity": float(np.mean(spreads))} if spreads else {})


def image_diversity(samples: Tensor) -> dict[str, float]:
    """Mean pixel standard deviation across samples, uint8 [B, ...] -> [0, 1]; empty for one sample, or for latents."""
    if len(samples) < 2 or samples.dtype != torch.uint8:
        return {}
    # One sample at a time: a batch of large images as floats may not fit in memory.
    total, squares = torch.zeros((2, *samples.shape[1:]), dtype=torch.float64)
    for sample in samples:
        value = sample.double() / 255
        total += value
        squares += value * value
    variance = squares / len(samples) - (total / len(samples)) ** 2
    return {collapse.IMAGES: variance.clamp(min=0).sqrt().mean().item()}


def eta(seconds_per_step: Sequence[float], remaining: int) -> float | None:
    """Estimated seconds for the remaining steps, from the median of the last ten; None without steps."""
    return float(np.median(seconds_per_step[-10:])) * remaining if seconds_per_step else None


def over_ranks(ranks: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Each metric over the ranks: the average, or the maximum of metrics that are maxima by their names."""
    return {name: combine(name, values) for name, values in ranks.items()}
