"""PURE: batching: pad the samples of single rows and collect them in verl's `DataProto`."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor
from verl import DataProto

from verl_omni.agent_loop.output import (
    PADDED_FIELDS,
    DiffusionAgentLoopOutput,
    _InternalDiffusionAgentLoopOutput,
)
from verl_omni.reward_loop.scorer_results import FAILURE
from verl_omni.samples import GENERATED
from verl_omni.utils.columns import objects

# Columns that training reads. A data set's column may be replaced by a scorer's field, to show it as a metric.
_MADE_HERE = frozenset({"uid", "__num_turns__", GENERATED})
OWN_COLUMNS = _MADE_HERE | {"global_steps", "reward_extra_info", "raw_prompt"}
OF_THE_BATCH = _MADE_HERE | {"prompts", "responses", "rm_scores", FAILURE}


def _pad_prompt_extra_field(key: str, value: Tensor, target_length: int) -> Tensor:
    """Zero-pad dimension 0 on the right to `target_length`: [L, D] -> [target, D], [L] -> [target].

    Raises:
        ValueError: it is longer than `target_length`.
    """
    length = value.shape[0]
    if length > target_length:
        raise ValueError(
            f"{key} sequence length {length} exceeds max_prompt_embed_length={target_length}. "
            "Raise actor_rollout_ref.rollout.max_prompt_embed_length, or shorten the prompt."
        )
    return (
        torch.cat([value, value.new_zeros(target_length - length, *value.shape[1:])])
        if length < target_length
        else value
    )


def pad_fields(fields: Mapping[str, Any], embed_length: int) -> dict[str, Any]:
    """Fields with a batch dimension of 1 for tensors, and the common length for embeddings and their masks."""
    padded = {}
    for key, value in fields.items():
        if isinstance(value, Tensor):
            if key in PADDED_FIELDS:
                value = _pad_prompt_extra_field(key, value, embed_length)
            value = value.unsqueeze(0)
        padded[key] = value
    return padded


def pad_prompt(tokenizer: Any, prompt_ids: list[int], length: int) -> tuple[Tensor, Tensor]:
    """Token ids and attention mask, int64 [1, length], padded on the tokenizer's padding side.

    Raises:
        ValueError: there are more than `length`: rows of one batch have one length.
    """
    if len(prompt_ids) > length:
        raise ValueError(
            f"the agent loop returned {len(prompt_ids)} prompt_ids, and actor_rollout_ref.rollout.prompt_length is "
            f"{length}: shorten them there, or raise data.max_prompt_length"
        )
    padded = tokenizer.pad(
        {"input_ids": prompt_ids},
        padding="max_length",
        max_length=length,
        return_tensors="pt",
        return_attention_mask=True,
    )
    ids = padded["input_ids"]
    mask = padded["attention_mask"]
    return (ids, mask) if ids.ndim == 2 else (ids.unsqueeze(0), mask.unsqueeze(0))


def check_loop_output(output: Any) -> None:
    """Refuse the output of an agent loop if it cannot be batched.

    Raises:
        TypeError: it is no `DiffusionAgentLoopOutput`, or its sample or log-probabilities are no tensors.
        ValueError: it has no prompt ids, or an extra field would replace a column of the batch.
    """
    if not isinstance(output, DiffusionAgentLoopOutput):
        raise TypeError(f"the agent loop returned {type(output).__name__}, and not DiffusionAgentLoopOutput")
    sample = output.response_diffusion_output
    log_probs = output.response_logprobs
    if not isinstance(sample, Tensor):
        raise TypeError(f"the agent loop returned a sample of type {type(sample).__name__}, and not a tensor")
    if not (log_probs is None or isinstance(log_probs, Tensor)):
        raise TypeError(f"the agent loop returned log-probabilities of type {type(log_probs).__name__}, not a tensor")
    if not output.prompt_ids:
        raise ValueError("the agent loop returned no prompt_ids")
    if taken := sorted(OF_THE_BATCH & set(output.extra_fields)):
        raise ValueError(
            f"the agent loop returned the extra field {taken[0]!r}, and the batch has a column of that name: rename it"
        )


def check_reward_fields(fields: Collection[str], source: str = "scorer") -> None:
    """Refuse fields next to a score that would replace a column which training reads.

    Raises:
        ValueError: a name is in `OWN_COLUMNS`.
    """
    if taken := sorted(OWN_COLUMNS & set(fields)):
        raise ValueError(
            f"the {source} returned the field {taken[0]!r}, and the batch has a column of that name, which training "
            f"reads: rename the field in the {source}'s result"
        )


def reward_columns(fields: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """The scorers' fields of each sample as columns [B], by name; None where a sample lacks one."""
    names = sorted({name for row in fields for name in row})
    return {name: _reward_column([row.get(name) for row in fields]) for name in names}


def _reward_column(values: Sequence[Any]) -> np.ndarray:
    """A column [B] of a scorer's field: of numbers if all values are numbers or 0-d tensors, otherwise of objects."""
    plain = [value.item() if getattr(value, "ndim", None) == 0 else value for value in values]
    numbers = all(isinstance(value, (bool, int, float)) for value in plain)
    return np.array(plain) if numbers else objects(values)


def collate(rows: Sequence[_InternalDiffusionAgentLoopOutput], columns: Mapping[str, np.ndarray]) -> DataProto:
    """Collect rows in one batch.

    `batch`: prompts, responses and rollout_log_probs (if the first row has any), every tensor among the first
    row's extra fields, and rm_scores float32 [B, 1] if every row has a score, which is NaN if it could not be
    scored. `non_tensor_batch`: the input columns, `__num_turns__`, the reward's extra keys, None in rows that lack one,
    and the remaining extra fields.

    Raises:
        KeyError: a row lacks a tensor that the first row has.
    """
    first = rows[0]
    tensors = {"prompts": torch.cat([row.prompt_ids for row in rows])}
    if first.response_diffusion_output is not None:
        tensors["responses"] = _joined("responses", [row.response_diffusion_output for row in rows])
    if first.response_logprobs is not None:
        tensors["rollout_log_probs"] = _joined("rollout_log_probs", [row.response_logprobs for row in rows])
    carried = [key for key, value in first.extra_fields.items() if isinstance(value, Tensor)]
    for key in carried:
        tensors[key] = _joined(key, [row.extra_fields.get(key) for row in rows])
    others = dict(columns)
    others["__num_turns__"] = np.array([row.num_turns for row in rows], dtype=np.int32)
    meta: dict[str, Any] = {"metrics": [row.metrics.model_dump() for row in rows]}
    scores = [row.reward_score for row in rows]
    if all(score is not None for score in scores):
        tensors["rm_scores"] = torch.tensor(scores, dtype=torch.float32).unsqueeze(-1)
        reported = reward_columns([row.extra_fields.get("reward_extra_info") or {} for row in rows])
        meta["reward_extra_keys"] = list(reported)
        others |= reported
    taken = {*carried, *meta.get("reward_extra_keys", [])}
    names = dict.fromkeys(key for row in rows for key in row.extra_fields if key not in taken)
    others |= {key: objects([row.extra_fields.get(key) for row in rows]) for key in names}
    return DataProto(batch=TensorDict(tensors, batch_size=len(rows)), non_tensor_batch=others, meta_info=meta)


def align(parts: Sequence[DataProto]) -> list[DataProto]:
    """Give the parts of a batch from several workers the keys that one worker would have given all rows.

    Scores are kept if every part has them. A column that a part lacks is None there; so is a reward's extra key for
    which the part only has a column of the data set. Tensors are not changed: a part or a row that
    lacks one is an error.
    """
    scored = all("rm_scores" in part.batch for part in parts)
    reported = [set(part.meta_info.get("reward_extra_keys", [])) for part in parts]
    keys_of_all = set().union(*reported)
    dropped = set() if scored else keys_of_all
    names = [name for name in dict.fromkeys(n for part in parts for n in part.non_tensor_batch) if name not in dropped]
    aligned = []
    for part, own_keys in zip(parts, reported, strict=True):
        batch = part.batch if scored else part.batch.exclude("rm_scores")
        lacked = objects([None] * len(part))
        columns = {
            name: lacked if name in keys_of_all - own_keys else part.non_tensor_batch.get(name, lacked)
            for name in names
        }
        keys = {"reward_extra_keys": sorted(keys_of_all)} if scored else {}
        others = {name: value for name, value in part.meta_info.items() if name != "reward_extra_keys"}
        aligned.append(DataProto(batch=batch, non_tensor_batch=columns, meta_info={**others, **keys}))
    return aligned


def _joined(key: str, values: Sequence[Tensor | None]) -> Tensor:
    tensors = [value for value in values if isinstance(value, Tensor)]
    if len(tensors) != len(values):
        missing = [row for row, value in enumerate(values) if not isinstance(value, Tensor)]
        raise KeyError(f"{key} is missing in rows {missing}, row 0 has it")
    return torch.cat(tensors)
