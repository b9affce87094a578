"""Length of a run in training steps, from the settings and the rows of its data set."""

from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from verl_omni.trainer.data import prompt_files
from verl_omni.trainer.settings.reference_modules import DATASET


def total_steps(config: DictConfig) -> int:
    """Training steps of the run: `total_training_steps`, or the steps in `total_epochs` if they are fewer.

    An epoch has one step per full batch, as in verl's data loader.

    Raises:
        FileNotFoundError: a data file does not exist.
        ValueError: it cannot be read, or the data set has fewer rows than a batch.
    """
    steps = config.trainer.total_training_steps
    epochs = config.trainer.total_epochs
    if epochs is None:
        return int(steps)
    batch = config.data.train_batch_size
    rows = count_rows(config.data.train_files)
    if config.data.train_max_samples > 0:
        rows = min(rows, config.data.train_max_samples)
    if config.algorithm.sample_source == "offline" and config.data.custom_cls.path == DATASET["path"]:
        rows -= _count_ties(config.data, rows)
    if rows < batch:
        raise ValueError(
            f"trainer.total_epochs: data.train_files has {rows} prompts, and a step {batch} (data.train_batch_size)"
        )
    of_epochs = epochs * (rows // batch)
    return int(of_epochs if steps is None else min(steps, of_epochs))


def count_rows(files: Any) -> int:
    """Rows of data files, without reading their columns.

    Raises:
        FileNotFoundError, ValueError: one does not exist, or is not a data file.
    """
    return sum(_rows_of(Path(path)) for path in ([files] if isinstance(files, str) else files))


def _rows_of(path: Path) -> int:
    prompt_files.check_exists(path)
    if path.suffix == prompt_files.PARQUET:
        from pyarrow import ArrowInvalid
        from pyarrow.parquet import ParquetFile

        try:
            return int(ParquetFile(path).metadata.num_rows)
        except ArrowInvalid as error:
            raise ValueError(f"{path} is not a Parquet file: {error}") from error
    return sum(1 for _ in prompt_files.rows(path, ""))


def _count_ties(data: DictConfig, limit: int) -> int:
    """Rows that prefer neither image of their pair, among the first `limit` of the training files."""
    ties = number = 0
    for path in map(Path, [data.train_files] if isinstance(data.train_files, str) else data.train_files):
        columns = prompt_files.pair_columns(path)
        if columns is not None and columns.label is None:
            number += _rows_of(path)
            continue
        for location, row in prompt_files.rows(path, data.prompt_key, *(columns.names if columns else ())):
            number += 1
            if number > limit:
                return ties
            ties += prompt_files.order_of_pair(columns, location, row) is None
    return ties
