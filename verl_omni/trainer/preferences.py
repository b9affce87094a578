"""Preference data sets: rows with a prompt, an image that is preferred (`chosen`) and one that is not (`rejected`)."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Image as ImageFeature
from PIL import Image, ImageOps
from torch import Tensor
from verl import DataProto

from verl_omni.trainer.prompt_images import shallow
from verl_omni.utils.columns import objects
from verl_omni.utils.messages import prompt_text
from verl_omni.workers.algorithms.base import draw_seeds

COLUMNS = ("chosen", "rejected")


class PreferencePairs:
    """Pairs of images of a data set, as requests of updates.

    An image is the path of a file, relative to the folder of the data set's first file, or what Parquet files of
    Hugging Face's `datasets` have: a mapping with `bytes` or `path`. It is scaled and cropped to the size of samples.

    Args:
        dataset: rows that also have the columns of `trainer.data.DiffusionRLDataset`.
        folder: that relative paths start from.
        height, width: of samples, in pixels.

    Raises:
        ValueError: a column is missing, or a row has no image.
        FileNotFoundError: the file of an image does not exist; the message names the first.
    """

    def __init__(self, dataset: Any, folder: Path, *, height: int, width: int) -> None:
        self._dataset, self._folder, self._size = dataset, folder, (width, height)
        columns = dataset.dataframe.column_names
        if missing := [name for name in COLUMNS if name not in columns]:
            raise ValueError(
                f"data.train_files have no column {' and '.join(missing)}, needed by algorithm.sample_source=offline; "
                f"their columns are {', '.join(columns)}"
            )
        for name in COLUMNS:
            if isinstance(dataset.dataframe.features[name], ImageFeature):  # whose rows would be decoded images
                dataset.dataframe = dataset.dataframe.cast_column(name, ImageFeature(decode=False))
            for row, value in enumerate(dataset.dataframe[name]):
                if not value or (isinstance(value, Mapping) and not (value.get("bytes") or value.get("path"))):
                    raise ValueError(f"row {row} of data.train_files: {name} is {value}, neither a path nor bytes")
                path = self._path(value)
                if path is not None and not path.is_file():
                    raise FileNotFoundError(f"row {row} of data.train_files: {name} is {path}, which does not exist")

    def update_request(self, rows: Sequence[int], seed: int) -> DataProto:
        """The request of an update on some rows; the ranks encode prompts and images.

        Args:
            seed: of the noise that the pairs are trained on.
        """
        pairs = [self._dataset.dataframe[row] for row in rows]
        pixels = torch.stack([torch.stack([self._read(pair[name]) for name in COLUMNS]) for pair in pairs])
        prompts = [prompt_text(self._dataset[row]["raw_prompt"]) for row in rows]
        return DataProto.from_dict(
            tensors={
                "pixels": pixels, "preferred": torch.ones(len(rows)), "draw_seeds": draw_seeds(len(rows), seed),
            },
            non_tensors={"prompts": objects(prompts)},
            meta_info={"request": {}},
        )  # fmt: skip

    def _path(self, value: Any) -> Path | None:
        """Path of an image's file; None if the row has its bytes."""
        if isinstance(value, Mapping):
            return None if value.get("bytes") else self._folder / value["path"]
        return self._folder / value

    def _read(self, value: Any) -> Tensor:
        """Pixels, uint8 [3, H, W]."""
        path = self._path(value)
        with Image.open(io.BytesIO(value["bytes"]) if path is None else path) as file:
            upright = ImageOps.exif_transpose(shallow(file))  # as viewers show it to those who prefer it
            image = ImageOps.fit(upright.convert("RGB"), self._size, Image.Resampling.LANCZOS)
        return torch.from_numpy(np.array(image)).permute(2, 0, 1)
