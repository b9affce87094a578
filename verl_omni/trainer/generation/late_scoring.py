"""Scoring of a batch after it is generated, by a judge that sleeps meanwhile."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from verl import DataProto

from verl_omni.agent_loop.batching import reward_columns
from verl_omni.agent_loop.score_requests import NUM_TURNS, UNSCORED
from verl_omni.reward_loop.scorer_results import FAILURE
from verl_omni.samples import GENERATED
from verl_omni.utils.columns import objects


def score_rest(prompts: DataProto, output: DataProto, score: Callable[[DataProto], DataProto], *, latent: bool) -> None:
    """Score the samples of `output` that their agent loop has not scored, and add the columns of all scores to it.

    Args:
        prompts, output: input and output of a generation with `meta_info["score_later"]`.
        score: returns `rm_scores` [b, 1], the column `scoring_failure`, and `meta_info["reward_extra_keys"]`, whose
            columns are further fields.
        latent: whether the scorer gets `clean_latents`, which an evaluation with the output type `both` has.
    """
    samples = output.non_tensor_batch[GENERATED]
    scores = [sample.score for sample in samples]
    unscored_rows = [row for row, reward in enumerate(scores) if reward is None]
    fields = [info or {} for info in output.non_tensor_batch.get("reward_extra_info", [None] * len(output))]
    late_scores = score(to_score(prompts, output, unscored_rows, latent=latent))
    keys = late_scores.meta_info["reward_extra_keys"]
    for number, row in enumerate(unscored_rows):
        scores[row] = float(late_scores.batch["rm_scores"][number, 0])
        # Without the last references of a sample that is scored.
        samples[row] = replace(samples[row], failure=late_scores.non_tensor_batch[FAILURE][number], unscored=None)
        fields[row] = {key: late_scores.non_tensor_batch[key][number] for key in keys}
    output.batch["rm_scores"] = torch.tensor(scores, dtype=torch.float32).unsqueeze(-1)
    reported = reward_columns(fields)
    output.non_tensor_batch |= reported
    output.meta_info["reward_extra_keys"] = list(reported)


def to_score(prompts: DataProto, output: DataProto, rows: Sequence[int], *, latent: bool) -> DataProto:
    """Rows of a batch in the form for reward workers: data set columns, samples, and fields that a loop added.

    Samples in the object store stay there: the rows have their references.
    """
    chosen = list(rows)
    columns: dict[str, Any] = {name: column[chosen] for name, column in prompts.non_tensor_batch.items()}
    samples = output.non_tensor_batch[GENERATED][chosen]
    columns["tool_extra_fields"] = objects([dict(sample.scorer_fields) for sample in samples])
    columns[NUM_TURNS] = output.non_tensor_batch[NUM_TURNS][chosen]
    meta = {"validate": bool(prompts.meta_info.get("validate"))}
    if "responses" not in output.batch:
        columns[UNSCORED] = objects([sample.unscored for sample in samples])
        return DataProto(batch=None, non_tensor_batch=columns, meta_info=meta)
    responses = output.batch["clean_latents" if latent else "responses"]
    return DataProto.from_dict(
        tensors={"prompts": output.batch["prompts"][chosen], "responses": responses[chosen]},
        non_tensors=columns,
        meta_info=meta,
    )
