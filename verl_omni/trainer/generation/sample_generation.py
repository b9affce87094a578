"""Sample generation: the requests of a step or an evaluation, and their scored samples from agent loops."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from omegaconf import DictConfig

from verl_omni.algos import advantages
from verl_omni.reward_loop.part_settings import only_evaluates
from verl_omni.reward_loop.scorer_results import TooManyUnscored, failures_allowed, too_many_text
from verl_omni.samples import SampleRequest, SampleRequests, ScoredSamples
from verl_omni.trainer.generation import late_scoring, verl_batches
from verl_omni.trainer.settings.reward_settings import NORMALIZED
from verl_omni.utils.pixels import BOTH
from verl_omni.utils.seeds import hashed_seed

UNSCORED = "samples have no reward: check reward.scorer and reward.reward_manager"


def training_requests(
    rows: Sequence[Mapping[str, Any]],
    *,
    n: int,
    step: int,
    version: int,
    seed: int,
    keeps_media: bool = True,
    stores_tensors: bool = False,
    pictures: int = 0,
) -> SampleRequests:
    """The requests of a training step: each prompt `n` times in a row.

    Args:
        seed: `rollout.seed`. Seeds depend on it, the step and the row, so a resumed run draws the same samples.
        pictures: number of prompts whose first sample's pixels come back in any case.
    """
    return SampleRequests(
        [
            SampleRequest(row, f"{step}-{index}", keeps_picture=index < pictures and number == 0)
            for index, row in enumerate(rows)
            for number in range(n)
        ],
        version,
        seed=hashed_seed("samples", seed, step),
        finished_steps=step - 1,
        keeps_media=keeps_media,
        stores_tensors=stores_tensors,
    )


def evaluation_seeds(rows: Sequence[Mapping[str, Any]], seed: int) -> list[int]:
    """The seed of each row of an evaluation: its column `seed`, otherwise `seed` plus the row's index."""
    return [seed + index if row.get("seed") is None else int(row["seed"]) for index, row in enumerate(rows)]


def evaluation_requests(
    rows: Sequence[Mapping[str, Any]], *, seed: int, version: int | None = None, only_shown: bool = False
) -> SampleRequests:
    """The requests of an evaluation: each prompt once, with its `evaluation_seeds`; error messages show `version`."""
    seeds = evaluation_seeds(rows, seed)
    return SampleRequests(
        [SampleRequest(row, f"val-{index}", seeds[index]) for index, row in enumerate(rows)],
        version,
        is_evaluation=True,
        is_only_shown=only_shown,
    )


def generate_scored(
    config: DictConfig, agent_loop: Any, batch: SampleRequests, score: Callable[[Any], Any] | None = None
) -> ScoredSamples:
    """Generate and score a batch.

    Args:
        agent_loop: `DiffusionAgentLoopManager`.
        score: scores verl's batch of samples when all are generated; None: agent loops have them scored.

    Raises:
        KeyError: samples were not scored.
        TooManyUnscored: more of them could not be scored than `reward.max_failed_share` allows.
    """
    began = time.perf_counter()
    count = len(batch.requests)
    allowed = count if batch.is_only_shown else failures_allowed(count, float(config.reward.max_failed_share))
    prompts = verl_batches.requests_to_verl(batch, failures_allowed=allowed, score_later=score is not None)
    output = agent_loop.generate_sequences(prompts)
    scoring_seconds = verl_batches.scoring_seconds(output)
    if score is not None and not verl_batches.is_scored(output):
        generated = time.perf_counter()
        latent = verl_batches.output_type(config.actor_rollout_ref.rollout, batch) == BOTH
        late_scoring.score_rest(prompts, output, score, latent=latent)
        scoring_seconds = time.perf_counter() - generated
    seconds = time.perf_counter() - began
    if not verl_batches.is_scored(output):
        raise KeyError(UNSCORED)
    samples = verl_batches.samples_from_verl(config, batch, output, seconds=seconds, scoring=scoring_seconds)
    _check_failures(samples, allowed)
    return samples


def generate_parts(
    config: DictConfig,
    agent_loop: Any,
    parts: Sequence[SampleRequests],
    take: Callable[[ScoredSamples], None],
) -> ScoredSamples:
    """Generate and score the parts of a batch, all of which are sent at once; returns all samples.

    Args:
        take: gets the samples of each part but the last, while the next ones are generated.

    Raises:
        Exception: as `generate_scored`, and what `take` raises; the other parts are abandoned.
    """
    full_batch = replace(parts[0], requests=[request for part in parts for request in part.requests])
    allowed = failures_allowed(len(full_batch.requests), float(config.reward.max_failed_share))

    sent = [agent_loop.send(verl_batches.requests_to_verl(part, failures_allowed=allowed)) for part in parts]
    outputs: list[Any] = []
    try:
        for part, batch in zip(parts, sent, strict=True):
            output = agent_loop.receive(batch)
            if not verl_batches.is_scored(output):
                raise KeyError(UNSCORED)
            outputs.append(output)
            if len(outputs) < len(parts):
                take(verl_batches.samples_from_verl(config, part, output, seconds=batch.seconds, scoring=None))
    except Exception:
        agent_loop.abandon(sent[len(outputs) :])
        raise
    output = verl_batches.joined(outputs)
    scoring = verl_batches.scoring_seconds(output)
    samples = verl_batches.samples_from_verl(config, full_batch, output, seconds=sent[-1].seconds, scoring=scoring)
    _check_failures(samples, allowed)
    return samples


def _check_failures(samples: ScoredSamples, allowed: int) -> None:
    """Refuse a batch with too many samples that could not be scored, or without any reward."""
    counted = [failure for failure in samples.failures if failure.required]
    if len(counted) > allowed:
        raise TooManyUnscored(too_many_text(counted[0].text, len(counted), allowed))
    count = len(samples.scores)
    if allowed < count and samples.scores.isnan().all():
        raise TooManyUnscored(too_many_text(samples.failures[0].text, count, count - 1))


def training_scores(samples: ScoredSamples, reward: DictConfig) -> ScoredSamples:
    """The samples with the scores to train on: with `reward.aggregation=normalized_sum`, normalized for each scorer.

    Raises:
        KeyError: a scorer's scores are not in the samples; the message lists what is.
        ValueError: a score is infinite.
    """
    if reward.aggregation != NORMALIZED:
        return samples
    columns = []
    weights = []
    for key, part in reward.reward_functions.items():
        if only_evaluates(part) or float(part.get("weight", 1.0)) == 0:
            continue  # a sample has a reward without its score
        if f"reward/{key}" not in samples.extras:
            raise KeyError(f"no scores of reward.reward_functions.{key}; samples have {sorted(samples.extras)}")
        scores_of_part = [math.nan if score is None else score for score in samples.extras[f"reward/{key}"]]
        columns.append(torch.tensor(scores_of_part, dtype=torch.float64))
        weights.append(float(part.get("weight", 1.0)))
    unscored = samples.scores.isnan()
    known = torch.stack(columns, 1).masked_fill(unscored[:, None], math.nan)
    scores = advantages.normalized_sum(known, weights, samples.groups)
    return replace(samples, scores=scores)
