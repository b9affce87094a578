"""Requests, samples and training batches in the form in which verl carries them, `DataProto`, and back."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig
from verl import DataProto

from verl_omni.agent_loop.batching import align
from verl_omni.agent_loop.rows import short_prompt
from verl_omni.agent_loop.sampling import KEEPS_PICTURE
from verl_omni.pipelines.registry import training_adapter
from verl_omni.reward_loop.scorer_results import ScoringFailure, failure_of
from verl_omni.samples import GENERATED, RECORDED, SAMPLE, Sample, SampleRequests, ScoredSamples, TrainingBatch
from verl_omni.utils.columns import objects
from verl_omni.utils.pixels import as_pixels

SLOWEST_SCORE = "agent_loop/slowest/compute_score"  # verl's name


def requests_to_verl(batch: SampleRequests, *, failures_allowed: int = 0, score_later: bool = False) -> DataProto:
    """The input of agent loops.

    Args:
        failures_allowed: how many samples may have no score.
        score_later: whether agent loops leave scoring to the trainer.
    """
    rows = [request.row for request in batch.requests]
    # Rows may have different columns; None where a row lacks one.
    columns = {name: objects([row.get(name) for row in rows]) for name in dict.fromkeys(n for row in rows for n in row)}
    columns["uid"] = np.array([request.group for request in batch.requests], dtype=object)
    meta: dict[str, Any] = {"global_steps": batch.version, "failures_allowed": failures_allowed}
    if batch.is_evaluation:
        meta["validate"] = True
        columns["seed"] = np.array([request.seed for request in batch.requests], dtype=np.int64)
    else:
        columns["_rollout_seed_global_idx"] = np.arange(batch.first, batch.first + len(rows), dtype=np.int64)
        meta |= {"finished_steps": batch.finished_steps, "rollout_seed": batch.seed}
    if any(request.keeps_picture for request in batch.requests):
        columns[KEEPS_PICTURE] = np.array([request.keeps_picture for request in batch.requests], dtype=object)
    if not batch.keeps_media:
        meta["carry_responses"] = False
    if batch.stores_tensors:
        meta["store_samples"] = True
    if score_later:
        meta["score_later"] = True
    if batch.part is not None:
        meta["step_part"] = batch.part, len(rows)
    return DataProto(batch=None, non_tensor_batch=columns, meta_info=meta)


def output_type(rollout: DictConfig, batch: SampleRequests) -> str:
    """The output type of the samples; evaluations may override it."""
    evaluated = rollout.val_kwargs.pipeline.get("output_type") if batch.is_evaluation else None
    return str(evaluated or rollout.pipeline.output_type)


def is_scored(output: DataProto) -> bool:
    """Whether all samples of agent loops have a score, or the NaN of a sample that could not be scored."""
    return "rm_scores" in output.batch


def scoring_seconds(output: DataProto) -> float | None:
    """Seconds that the batch waited for its slowest reward; None where agent loops do not score."""
    seconds: float | None = output.meta_info.get("timing", {}).get(SLOWEST_SCORE)
    return seconds


def joined(outputs: Sequence[DataProto]) -> DataProto:
    """The output of agent loops for a batch whose parts they got one after the other."""
    parts = align(outputs)
    waits = [seconds for part in parts if (seconds := scoring_seconds(part)) is not None]
    for part in parts:
        part.meta_info.pop("timing", None)
    batch = DataProto.concat(parts)
    if waits:
        batch.meta_info["timing"] = {SLOWEST_SCORE: max(waits)}
    return batch


def samples_from_verl(
    config: DictConfig, batch: SampleRequests, output: DataProto, *, seconds: float, scoring: float | None
) -> ScoredSamples:
    """The samples of the output of agent loops, all of which are scored.

    Args:
        seconds, scoring: `ScoredSamples.seconds` and `ScoredSamples.scoring_seconds`.
    """
    columns = output.non_tensor_batch
    samples: list[Sample] = list(columns[GENERATED])
    scores = output.batch["rm_scores"].squeeze(-1).float()
    stored = [sample.stored for sample in samples if sample.stored is not None]
    names = (*RECORDED, *training_adapter(config.actor_rollout_ref.model.architecture).CONDITIONS)
    tensors = {name: output.batch[name] for name in names if name in output.batch}
    responses = output.batch.get("responses")
    is_latent = output_type(config.actor_rollout_ref.rollout, batch) == "latent"
    return ScoredSamples(
        tensors={SAMPLE: torch.arange(len(output))} if stored else tensors,
        images=None if responses is None or is_latent else as_pixels(responses),
        scores=scores,
        extras={key: list(columns[key]) for key in output.meta_info.get("reward_extra_keys", [])},
        versions=[sample.version for sample in samples],
        groups=[request.group for request in batch.requests],
        seconds=seconds,
        scoring_seconds=scoring,
        stored=stored,
        failures=_failures(scores, samples, batch.prompts()),
        statistics=[sample.statistics for sample in samples if sample.statistics is not None],
        pictures={index: sample.picture for index, sample in enumerate(samples) if sample.picture is not None},
        times_lost=sum(sample.times_lost for sample in samples),
        times_aborted=sum(sample.times_aborted for sample in samples),
    )


def _failures(scores: torch.Tensor, samples: Sequence[Sample], prompts: Sequence[Any]) -> list[ScoringFailure]:
    """The failures of a batch, each with the sample's prompt."""
    failures = []
    for score, sample, prompt in zip(scores.tolist(), samples, prompts, strict=True):
        if (known := failure_of(score, sample.failure)) is not None:
            text = f"prompt {short_prompt(prompt)}: {known.text}"
            failures.append(replace(known, text=text))
    return failures


def update_to_verl(batch: TrainingBatch) -> DataProto:
    """The request of an update, with the references of stored samples in a column `stored`, which the ranks load."""
    tensors = {name: tensor for name, tensor in batch.rows.items() if not (batch.stored and name == SAMPLE)}
    columns = {"stored": objects(batch.stored_in_rows())} if batch.stored else {}
    return DataProto.from_dict(tensors=tensors, non_tensors=columns, meta_info={"request": dict(batch.arguments)})
