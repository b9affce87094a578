"""PURE: the scores that an algorithm trains on, where several scorers are normalized before they are added."""

from __future__ import annotations

from dataclasses import replace

import torch
from omegaconf import DictConfig

from verl_omni.algos import advantages
from verl_omni.trainer.reward_settings import NORMALIZED
from verl_omni.trainer.sample_generation import ScoredSamples


def training_scores(samples: ScoredSamples, reward: DictConfig) -> ScoredSamples:
    """The samples with the scores to train on: with `reward.aggregation=normalized_sum`, normalized for each scorer.

    Raises:
        KeyError: a scorer's scores are not in the samples; the message lists what is.
        ValueError: a score is not finite.
    """
    if reward.aggregation != NORMALIZED:
        return samples
    columns, weights = [], []
    for key, part in reward.reward_functions.items():
        if f"reward/{key}" not in samples.extras:
            raise KeyError(f"no scores of reward.reward_functions.{key}; samples have {sorted(samples.extras)}")
        columns.append(torch.tensor(samples.extras[f"reward/{key}"], dtype=torch.float64))
        weights.append(float(part.get("weight", 1.0)))
    scores = advantages.normalized_sum(torch.stack(columns, 1), weights, samples.groups)
    return replace(samples, scores=scores)
