"""Warnings about truncated prompts, and negative prompts that are unused without guidance."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from verl_omni.pipelines.registry import training_adapter
from verl_omni.trainer.data import prompt_dataset, prompt_tables
from verl_omni.trainer.data.prompt_files import NEGATIVE_PROMPT
from verl_omni.utils.messages import prompt_text

LENGTH = "max_sequence_length"


def describe_truncated(config: DictConfig, train: Any, held_out: Any | None) -> Iterator[str]:
    """Warnings for data sets with prompts that are truncated by the text encoder with the largest token limit.

    Nothing for families that refuse such prompts, whose adapter has no `LONGEST_TOKENIZER`.

    Args:
        train, held_out: data sets; user-defined data set classes are not checked.
    """
    model = config.actor_rollout_ref.model
    rollout = config.actor_rollout_ref.rollout
    name = getattr(training_adapter(model.architecture), "LONGEST_TOKENIZER", None)
    if name is None or not (Path(model.path) / name).is_dir() or model.custom_chat_template:
        return
    from verl.utils import hf_tokenizer

    tokenizer = hf_tokenizer(f"{model.path}/{name}", trust_remote_code=config.data.trust_remote_code)
    limits = {"data.train_files": (train, rollout.pipeline[LENGTH], f"pipeline.{LENGTH}")}
    evaluated = rollout.val_kwargs.pipeline.get(LENGTH)
    where = f"pipeline.{LENGTH}" if evaluated is None else f"val_kwargs.pipeline.{LENGTH}"
    limits["data.val_files"] = (held_out, rollout.pipeline[LENGTH] if evaluated is None else evaluated, where)
    for files, (dataset, limit, setting) in limits.items():
        if isinstance(dataset, prompt_dataset.DiffusionRLDataset):
            texts = [
                prompt_text(prompt_dataset.as_messages(prompt))
                for prompt in prompt_tables.column(dataset.dataframe, dataset.prompt_key)
            ]
            if long := prompt_dataset.too_long(texts, tokenizer, {}, limit):
                row, tokens = long[0]
                yield (
                    f"{files}: {len(long)} of {len(texts)} prompts, such as row {row} with {tokens} tokens, have more "
                    f"than actor_rollout_ref.rollout.{setting}={limit} tokens: they lose their end, which the scorer "
                    "still reads; raise it, as far as the model supports, or shorten the prompts"
                )


def describe_unread(config: DictConfig, train: Any, held_out: Any | None) -> Iterator[str]:
    """Warnings for data sets with negative prompts that are unused because their samples are not guided.

    Args:
        train, held_out: as `describe_truncated` takes them.
    """
    rollout = config.actor_rollout_ref.rollout
    adapter = training_adapter(config.actor_rollout_ref.model.architecture)
    evaluated = OmegaConf.merge(rollout.pipeline, rollout.val_kwargs.pipeline)
    sampled = config.algorithm.sample_source == "online"
    for files, dataset, guided in (
        ("data.train_files", train, sampled and adapter.guidance(rollout.pipeline) > 1),
        ("data.val_files", held_out, adapter.guidance(evaluated) > 1),
    ):
        if guided or not isinstance(dataset, prompt_dataset.DiffusionRLDataset):
            continue
        rows = dataset.dataframe
        if NEGATIVE_PROMPT in rows.column_names and any(prompt_tables.column(rows, NEGATIVE_PROMPT)):
            yield (
                f"{files}: the column {NEGATIVE_PROMPT} is not read, because these samples have no guidance "
                "(actor_rollout_ref.rollout.pipeline.guidance_scale above 1)"
            )
