"""Rows of prompt files as a data set of Hugging Face's `datasets`.

Its own reader of JSON is not used: it makes dates of texts such as `2024-01-01`, decides from the first 10 MB which
columns there are, and reads rows from its cache again if a file has the name and the time of an earlier one.
"""

from __future__ import annotations

import glob
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from datasets import Dataset, concatenate_datasets, load_dataset

from verl_omni.trainer import prompt_files

PARQUET = ".parquet"


def read(files: Sequence[str]) -> Dataset:
    """The rows of files, in their order; a column that a row's file does not have is None.

    Raises:
        InvalidPromptFile: a file of JSON cannot be used.
        ArrowException, DatasetsError, ValueError: a Parquet file cannot be read, or has other types than the rest.
    """
    parts: list[Dataset] = []
    for parquet, group in groupby(files, key=lambda file: Path(file).suffix == PARQUET):
        paths = list(group)
        parts += map(_parquet_table, paths) if parquet else [_json_table(paths)]
    return concatenate_datasets(parts)


def _parquet_table(file: str) -> Dataset:
    """Rows of a Parquet file, from the cache of `datasets` if this very file is in it."""
    stat = Path(file).stat()
    # Part of the name in the cache, which otherwise has path and time of the change, as copies of other files can.
    content = f"{stat.st_dev} {stat.st_ino} {stat.st_size} {stat.st_ctime_ns}"
    return load_dataset("parquet", data_files=glob.escape(file), description=content)["train"]


def _json_table(files: Iterable[str]) -> Dataset:
    """Rows of files of JSON; values of several types in a column stay what they are."""
    columns: dict[str, list[Any]] = {}
    number = 0
    for file in files:
        for place, row in prompt_files.rows(Path(file), ""):
            if not isinstance(row, Mapping):
                raise prompt_files.InvalidPromptFile(f"{place}: {prompt_files.row_problem(row, '')}")
            for name, value in row.items():
                column = columns.setdefault(name, [])
                column += [None] * (number - len(column))
                column.append(value)
            number += 1
    for column in columns.values():
        column += [None] * (number - len(column))
    return Dataset.from_dict(columns, on_mixed_types="use_json")
