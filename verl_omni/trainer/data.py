"""Prompt data sets: rows of JSONL or Parquet files, in an order that depends only on the seed."""

from __future__ import annotations

from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from typing_extensions import override
from verl.utils.dataset.rl_dataset import RLHFDataset


class DiffusionRLDataset(RLHFDataset):  # type: ignore[misc]
    """verl's dataset, extended to prompts that are plain text as well as lists of messages.

    A row has `prompt`, and may have `negative_prompt`, `data_source`, `ground_truth` (or verl's
    `reward_model.ground_truth`) and `extra_info`. An item has `raw_prompt`, `data_source`, `reward_model`, `extra_info`
    (which includes the prompt's text), and `raw_negative_prompt` if any row has a negative prompt.
    """

    @override
    def _build_messages(self, example: dict[str, Any], key: str) -> list[dict[str, Any]]:
        if isinstance(example[key], str):
            return [{"role": "user", "content": example[key]}]
        return super()._build_messages(example, key)  # type: ignore[no-any-return]

    @override
    def __getitem__(self, item: int) -> dict[str, Any]:
        row = dict(self.dataframe[item])
        messages = self._build_messages(row, self.prompt_key)
        text = " ".join(str(message["content"]) for message in messages)
        graded = dict(row.get("reward_model") or {})
        graded.setdefault("style", "rule")
        graded.setdefault("ground_truth", row.get("ground_truth") or text)
        made: dict[str, Any] = {
            "raw_prompt": messages,
            "data_source": row.get("data_source") or "unknown",
            "reward_model": graded,
            "extra_info": {**(row.get("extra_info") or {}), "prompt": text, "index": item},
        }
        if "negative_prompt" in self.dataframe.column_names:
            made["raw_negative_prompt"] = row.get("negative_prompt") or ""
        return made


def load(files: Any, config: DictConfig, tokenizer: Any, processor: Any = None, max_samples: int = -1) -> RLHFDataset:
    """Read prompt files.

    Raises:
        FileNotFoundError: one of `files` does not exist.
        ValueError: they have no rows, or no column named `data.prompt_key`.
    """
    from pathlib import Path

    from verl.utils.dataset.rl_dataset import get_dataset_class

    paths = [files] if isinstance(files, str) else list(files)
    for path in paths:
        if not Path(path).is_file():
            raise FileNotFoundError(f"no data file {path}: correct data.train_files or data.val_files")
    settings = OmegaConf.merge(config, {"shuffle": False, "cache_dir": config.cache_dir or "~/.cache/verl/rlhf"})
    dataset = get_dataset_class(settings)(paths, tokenizer, settings, processor, max_samples)
    if settings.prompt_key not in dataset.dataframe.column_names:
        found = ", ".join(dataset.dataframe.column_names)
        raise ValueError(f"{paths} have no column {settings.prompt_key!r}: set data.prompt_key to one of {found}")
    if len(dataset) == 0:
        raise ValueError(f"{paths} have no prompts, or data.filter_overlong_prompts removed all of them")
    return dataset


def batch_indices(step: int, *, size: int, batch: int, seed: int, shuffle: bool = True) -> list[int]:
    """Indices of the rows of step `step` (from 1).

    A pure function, so a resumed run needs no data-loader state. Epoch e is a permutation seeded with (seed, e).
    Batches cross the ends of epochs, so every row is used once per epoch.

    Raises:
        ValueError: `size` or `batch` is not positive.
    """
    if size <= 0 or batch <= 0:
        raise ValueError(f"size and batch must be positive: {size}, {batch}")
    first = (step - 1) * batch
    return [_row(place, size=size, seed=seed, shuffle=shuffle) for place in range(first, first + batch)]


def _row(place: int, *, size: int, seed: int, shuffle: bool) -> int:
    epoch, within = divmod(place, size)
    if not shuffle:
        return within
    generator = torch.Generator().manual_seed((seed * 1_000_003 + epoch) % 2**63)
    return int(torch.randperm(size, generator=generator)[within])
