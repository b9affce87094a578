"""PURE: batching: pad the samples of single rows and collect them in verl's `DataProto`."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor
from verl import DataProto

from verl_omni.agent_loop.output import DiffusionAgentLoopOutput, _InternalDiffusionAgentLoopOutput
from verl_omni.agent_loop.training_tensors import FOR_THE_DRIVER, UNSCORED
from verl_omni.utils.columns import objects

# Columns that training reads. A data set's column may be replaced by a scorer's field, to show it as a metric.
OWN_COLUMNS = frozenset({*FOR_THE_DRIVER, "uid", "stored", "reward_extra_info", "raw_prompt", "__num_turns__"})
OF_THE_BATCH = frozenset({"prompts", "responses", "rm_scores", "uid", "stored", UNSCORED, "__num_turns__"})
PADDED_FIELDS = ("prompt_embeds", "prompt_embeds_mask", "negative_prompt_embeds", "negative_prompt_embeds_mask")


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
    made = {}
    for key, value in fields.items():
        if isinstance(value, Tensor):
            if key in PADDED_FIELDS:
                value = _pad_prompt_extra_field(key, value, embed_length)
            value = value.unsqueeze(0)
        made[key] = value
    return made


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
    made = tokenizer.pad(
        {"input_ids": prompt_ids}, padding="max_length", max_length=length,
        return_tensors="pt", return_attention_mask=True,
    )  # fmt: skip
    ids, mask = made["input_ids"], made["attention_mask"]
    return (ids, mask) if ids.ndim == 2 else (ids.unsqueeze(0), mask.unsqueeze(0))


def check_loop_output(output: Any) -> None:
    """Refuse what an agent loop returned, if no batch can be made of it.

    Raises:
        TypeError: it is no `DiffusionAgentLoopOutput`, or its sample or log-probabilities are no tensors.
        ValueError: it has no prompt ids, or an extra field would replace a column of the batch.
    """
    if not isinstance(output, DiffusionAgentLoopOutput):
        raise TypeError(f"the agent loop returned {type(output).__name__}, and not DiffusionAgentLoopOutput")
    sample, log_probs = output.response_diffusion_output, output.response_logprobs
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


def check_loop_score(output: DiffusionAgentLoopOutput) -> None:
    """Refuse a score of an agent loop that training cannot use, or fields with it as of `check_reward_fields`.

    Raises:
        ValueError: the score is not finite, or a name is in `OWN_COLUMNS`.
    """
    if output.reward_score is not None and not math.isfinite(output.reward_score):
        raise ValueError(f"the agent loop gave the score {output.reward_score}, which is not finite")
    check_reward_fields(output.extra_fields.get("reward_extra_info") or {}, "agent loop")


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


def reward_column(values: Sequence[Any]) -> np.ndarray:
    """A column [B] of a scorer's field: of numbers if all values are numbers or 0-d tensors, otherwise of objects."""
    plain = [value.item() if getattr(value, "ndim", None) == 0 else value for value in values]
    numbers = all(isinstance(value, (bool, int, float)) for value in plain)
    return np.array(plain) if numbers else objects(values)


def collate(rows: Sequence[_InternalDiffusionAgentLoopOutput], columns: Mapping[str, np.ndarray]) -> DataProto:
    """Collect rows in one batch.

    `batch`: prompts, responses and rollout_log_probs (if the first row has any), every tensor among the first
    row's extra fields, and rm_scores float32 [B, 1] if every row was scored. `non_tensor_batch`: the input
    columns, `__num_turns__`, the reward's extra keys that every row has, and the remaining extra fields.

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
        # Every worker must report the same keys, and a key that some row lacks has no column.
        infos = [row.extra_fields.get("reward_extra_info") or {} for row in rows]
        meta["reward_extra_keys"] = sorted(set.intersection(*(set(info) for info in infos)))
        others |= {key: reward_column([info[key] for info in infos]) for key in meta["reward_extra_keys"]}
    taken = {*carried, *meta.get("reward_extra_keys", [])}
    names = dict.fromkeys(key for row in rows for key in row.extra_fields if key not in taken)
    others |= {key: objects([row.extra_fields.get(key) for row in rows]) for key in names}
    return DataProto(batch=TensorDict(tensors, batch_size=len(rows)), non_tensor_batch=others, meta_info=meta)


def align(parts: Sequence[DataProto]) -> list[DataProto]:
    """Give the parts of a batch from several workers the keys that one worker would have given all rows.

    Scores are kept if every part has them, and a reward's extra key if every part has a column of it
    (`reward_extra_info` keeps all). Any other column that a part lacks is None there. Tensors are not changed: a part
    that lacks one is an error, like a row that lacks one.
    """
    scored = all("rm_scores" in part.batch for part in parts)
    reported = [set(part.meta_info.get("reward_extra_keys", [])) for part in parts]
    common = set.intersection(*reported)
    dropped = set.union(*reported) - common
    names = [name for name in dict.fromkeys(n for part in parts for n in part.non_tensor_batch) if name not in dropped]
    made = []
    for part in parts:
        batch = part.batch if scored else part.batch.exclude("rm_scores")
        columns = {name: part.non_tensor_batch.get(name, objects([None] * len(part))) for name in names}
        keys = {"reward_extra_keys": sorted(common)} if scored else {}
        others = {name: value for name, value in part.meta_info.items() if name != "reward_extra_keys"}
        made.append(DataProto(batch=batch, non_tensor_batch=columns, meta_info={**others, **keys}))
    return made


def _joined(key: str, values: Sequence[Tensor | None]) -> Tensor:
    found = [value for value in values if isinstance(value, Tensor)]
    if len(found) != len(values):
        missing = [row for row, value in enumerate(values) if not isinstance(value, Tensor)]
        raise KeyError(f"{key} is missing in rows {missing}, row 0 has it")
    return torch.cat(found)
