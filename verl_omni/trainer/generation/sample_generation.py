"""Sample generation: prompts to scored samples, through verl's agent-loop manager."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig
from verl import DataProto

from verl_omni.agent_loop.rows import short_prompt
from verl_omni.agent_loop.training_tensors import RECORDED
from verl_omni.algos import advantages
from verl_omni.pipelines.registry import training_adapter
from verl_omni.reward_loop.scorer_results import (
    FAILURE,
    ScoringFailure,
    TooManyUnscored,
    failure_of,
    failures_allowed,
    too_many_text,
)
from verl_omni.trainer.generation import late_scoring
from verl_omni.trainer.settings.reward_settings import NORMALIZED
from verl_omni.utils.columns import objects
from verl_omni.utils.pixels import BOTH, as_pixels
from verl_omni.utils.sample_store import StoredSample
from verl_omni.utils.seeds import hashed_seed

SAMPLE = "sample"  # tensor of a training batch that stands for samples: their places in `ScoredSamples`, int64


@dataclass(frozen=True, slots=True)
class ScoredSamples:
    """Generated and scored samples, in the order of the batch's rows.

    Attributes:
        tensors: training tensors, [B, ...]. For stored samples, it has only `SAMPLE`, which stands for all tensors
            behind their references. An algorithm repeats, drops and pairs rows in the same way in both cases.
        images: uint8 [B, C, H, W], or videos [B, T, C, H, W]; None for latents, and if `meta_info["carry_responses"]`
            is false.
        scores: float32 [B]; NaN: the sample could not be scored.
        extras: further numbers of the scorer, lists of length B by name; None where a sample lacks one.
        versions: weight version of each sample.
        groups: id of each sample's prompt.
        seconds: wall time of generation, including scoring.
        scoring_seconds: seconds the batch waited for its slowest reward; None where agent loops do not score.
        stored: references of each sample's training tensors; empty if the tensors are in `tensors`.
        failures: scoring failures, in the order of the rows; only for rows that a scorer could not score.
    """

    tensors: dict[str, torch.Tensor]
    images: torch.Tensor | None
    scores: torch.Tensor
    extras: dict[str, list[Any]]
    versions: list[Any]
    groups: list[str]
    seconds: float
    scoring_seconds: float | None
    stored: Sequence[StoredSample] = ()
    failures: Sequence[ScoringFailure] = ()


def training_prompts(rows: list[dict[str, Any]], *, n: int, step: int, version: int, seed: int) -> DataProto:
    """Training batch: each prompt `n` times in a row, with the values that each row's seed is derived from.

    Args:
        seed: `rollout.seed`. Seeds depend on it, the step and the row, so a resumed run draws the same samples.
    """
    repeated = [row for row in rows for _ in range(n)]
    columns = _columns(repeated)
    columns["uid"] = np.array([f"{step}-{place}" for place in range(len(rows)) for _ in range(n)], dtype=object)
    columns["_rollout_seed_global_idx"] = np.arange(len(repeated), dtype=np.int64)
    return DataProto(
        batch=None,
        non_tensor_batch=columns,
        meta_info={
            "global_steps": version,
            "finished_steps": step - 1,
            "rollout_seed": hashed_seed("samples", seed, step),
        },
    )


def evaluation_seeds(rows: Sequence[Mapping[str, Any]], seed: int) -> list[int]:
    """The seed of each row of an evaluation: its column `seed`, otherwise `seed` plus the row's index."""
    return [seed + place if row.get("seed") is None else int(row["seed"]) for place, row in enumerate(rows)]


def evaluation_prompts(rows: list[dict[str, Any]], *, seed: int, version: int | None = None) -> DataProto:
    """Evaluation batch: each prompt once, with its `evaluation_seeds`; error messages show `version`."""
    columns = _columns(rows)
    columns["uid"] = np.array([f"val-{place}" for place in range(len(rows))], dtype=object)
    columns["seed"] = np.array(evaluation_seeds(rows, seed), dtype=np.int64)
    return DataProto(batch=None, non_tensor_batch=columns, meta_info={"validate": True, "global_steps": version})


def generate(agent_loop: Any, prompts: DataProto, workers: int) -> DataProto:
    """Run the agent loop; pad the batch to a multiple of its workers, and drop the padding again."""
    from verl.protocol import pad_dataproto_to_divisor, unpad_dataproto

    padded, extra = pad_dataproto_to_divisor(prompts, workers)
    return unpad_dataproto(agent_loop.generate_sequences(padded), extra)


def generate_scored(
    config: DictConfig, agent_loop: Any, prompts: DataProto, score: Callable[[DataProto], DataProto] | None = None
) -> ScoredSamples:
    """Generate and score a batch.

    Args:
        score: scores the samples when all are generated; None: agent loops have them scored.

    Raises:
        KeyError: samples were not scored.
        TooManyUnscored: more of them could not be scored than `reward.max_failed_share` allows.
    """
    began = time.perf_counter()
    allowed = failures_allowed(len(prompts), float(config.reward.max_failed_share))
    prompts.meta_info["failures_allowed"] = allowed
    if score is not None:
        prompts.meta_info["score_later"] = True
    output = generate(agent_loop, prompts, config.actor_rollout_ref.rollout.agent.num_workers)
    scoring_seconds = output.meta_info.get("timing", {}).get("agent_loop/slowest/compute_score")
    if score is not None and "rm_scores" not in output.batch:
        generated = time.perf_counter()
        latent = _output_type(config.actor_rollout_ref.rollout, prompts.meta_info) == BOTH
        late_scoring.score_rest(prompts, output, score, latent=latent)
        scoring_seconds = time.perf_counter() - generated
    seconds = time.perf_counter() - began
    if "rm_scores" not in output.batch:
        raise KeyError("samples have no reward: check reward.scorer and reward.reward_manager")
    columns = output.non_tensor_batch
    scores = output.batch["rm_scores"].squeeze(-1).float()
    failures = _failures(scores, columns.get(FAILURE, [None] * len(output)), prompts.non_tensor_batch["raw_prompt"])
    _check_failures(scores, failures, allowed)
    names = (*RECORDED, *training_adapter(config.actor_rollout_ref.model.architecture).CONDITIONS)
    in_the_store = prompts.meta_info.get("store_samples") and "stored" in columns  # or it is the data set's column
    stored = list(columns["stored"]) if in_the_store else []
    return ScoredSamples(
        tensors={SAMPLE: torch.arange(len(output))}
        if stored
        else {name: output.batch[name] for name in names if name in output.batch},
        images=_pixels(
            output.batch.get("responses"), _output_type(config.actor_rollout_ref.rollout, prompts.meta_info)
        ),
        scores=scores,
        extras={key: list(columns[key]) for key in output.meta_info.get("reward_extra_keys", [])},
        versions=list(columns["global_steps"]),
        groups=[str(uid) for uid in columns["uid"]],
        seconds=seconds,
        scoring_seconds=scoring_seconds,
        stored=stored,
        failures=failures,
    )


def _failures(scores: torch.Tensor, found: Sequence[Any], prompts: Sequence[Any]) -> list[ScoringFailure]:
    """The failures of a batch, each with the sample's prompt."""
    failures = []
    for score, failure, prompt in zip(scores.tolist(), found, prompts, strict=True):
        if (known := failure_of(score, failure)) is not None:
            failures.append(replace(known, text=f"prompt {short_prompt(prompt)}: {known.text}"))
    return failures


def _check_failures(scores: torch.Tensor, failures: Sequence[ScoringFailure], allowed: int) -> None:
    """Refuse a batch with too many samples that could not be scored, or without any reward."""
    counted = [failure for failure in failures if failure.required]
    if len(counted) > allowed:
        raise TooManyUnscored(too_many_text(counted[0].text, len(counted), allowed))
    if scores.isnan().all():
        raise TooManyUnscored(too_many_text(failures[0].text, len(scores), len(scores) - 1))


def update_request(
    batch: Mapping[str, torch.Tensor], stored: Sequence[StoredSample], arguments: Mapping[str, Any]
) -> DataProto:
    """The request of an update: an algorithm's training batch and the arguments of its objective.

    Of stored samples, each row gets their references in a column `stored`, [B] tuples, which the ranks load.
    """
    tensors = dict(batch)
    columns = {}
    if stored:
        places = tensors.pop(SAMPLE)
        columns["stored"] = objects([tuple(stored[place] for place in row) for row in places.view(len(places), -1)])
    return DataProto.from_dict(tensors=tensors, non_tensors=columns, meta_info={"request": dict(arguments)})


def samples_in(batch: Mapping[str, torch.Tensor]) -> int:
    """Number of distinct samples in an algorithm's training batch; for samples that are not stored, its rows."""
    if SAMPLE in batch:
        return len(torch.unique(batch[SAMPLE]))
    return len(next(iter(batch.values())))


def _pixels(responses: torch.Tensor | None, output_type: str) -> torch.Tensor | None:
    return None if responses is None or output_type == "latent" else as_pixels(responses)


def _output_type(rollout: DictConfig, meta_info: Mapping[str, Any]) -> str:
    """The output type of the samples; evaluations may override it."""
    own = rollout.val_kwargs.pipeline.get("output_type") if meta_info.get("validate") else None
    return str(own or rollout.pipeline.output_type)


def _columns(rows: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    """Columns of rows that may have different keys; None where a row lacks one."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: objects([row.get(name) for row in rows]) for name in names}


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
        if float(part.get("weight", 1.0)) == 0:
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
