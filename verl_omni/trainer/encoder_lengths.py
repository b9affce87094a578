"""Prompts that are longer than what the model's text encoder reads, so that it draws the image without their end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from verl_omni.pipelines.registry import training_adapter
from verl_omni.trainer import data
from verl_omni.utils.messages import prompt_text

LENGTH = "max_sequence_length"


def describe_truncated(config: DictConfig, train: Any, held_out: Any | None) -> Iterator[str]:
    """A text for each data set whose prompts lose their end in the text encoder with the most tokens.

    Nothing for families that refuse such prompts, whose adapter has no `LONGEST_TOKENIZER`.

    Args:
        train, held_out: data sets; those of a class of the user are not counted.
    """
    model, rollout = config.actor_rollout_ref.model, config.actor_rollout_ref.rollout
    name = getattr(training_adapter(model.architecture), "LONGEST_TOKENIZER", None)
    if name is None or not (Path(model.path) / name).is_dir() or model.custom_chat_template:
        return
    from verl.utils import hf_tokenizer

    tokenizer = hf_tokenizer(f"{model.path}/{name}", trust_remote_code=config.data.trust_remote_code)
    limits = {"data.train_files": (train, rollout.pipeline[LENGTH], f"pipeline.{LENGTH}")}
    own = rollout.val_kwargs.pipeline.get(LENGTH)
    where = f"pipeline.{LENGTH}" if own is None else f"val_kwargs.pipeline.{LENGTH}"
    limits["data.val_files"] = (held_out, rollout.pipeline[LENGTH] if own is None else own, where)
    for files, (dataset, limit, setting) in limits.items():
        if isinstance(dataset, data.DiffusionRLDataset):
            texts = [prompt_text(data.as_messages(prompt)) for prompt in dataset.dataframe[dataset.prompt_key]]
            if text := _describe(texts, tokenizer, limit):
                yield (
                    f"{files}: {text} actor_rollout_ref.rollout.{setting}={limit} tokens: they lose their end, which "
                    "the scorer still reads; raise it, as far as the model supports, or shorten the prompts"
                )


def _describe(texts: Sequence[str], tokenizer: Any, limit: int) -> str:
    counts = data.token_counts(texts, tokenizer, {})
    long = [(row, count) for row, count in enumerate(counts) if count > limit]
    if not long:
        return ""
    row, tokens = long[0]
    return f"{len(long)} of {len(texts)} prompts, such as row {row} with {tokens} tokens, have more than"
