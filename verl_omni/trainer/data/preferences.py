"""Preference data sets: rows with a prompt, an image that is preferred and one that is not."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Image as ImageFeature
from PIL import Image, ImageOps
from torch import Tensor
from verl import DataProto

from verl_omni.trainer.data.preference_columns import find_columns, unread_columns
from verl_omni.trainer.data.prompt_images import ImageNotFound, as_rgb, open_image
from verl_omni.trainer.data.prompt_tables import FOLDER
from verl_omni.utils.columns import objects
from verl_omni.utils.messages import prompt_text
from verl_omni.workers.algorithms.base import draw_seeds


class PreferencePairs:
    """Pairs of images of a data set, as requests of updates.

    `preference_columns.LAYOUTS` lists the supported columns. An image is bytes, the path of a file relative to the
    folder of the row's file, or, as in Parquet files of Hugging Face's `datasets`, a mapping with `bytes` or `path`. It
    is scaled and cropped to the size of samples. Rows that prefer neither image are dropped.

    Args:
        dataset: rows that also have the columns of `trainer.data.DiffusionRLDataset`.
        folder: of the data set's files, if they are in one.
        height, width: size of samples in pixels.

    Attributes:
        notes: messages about unused parts of the data set.

    Raises:
        ValueError: a column is missing, a row has no image or the same one twice, the file of an image does not exist
            or is none, or no row is left.
    """

    def __init__(self, dataset: Any, folder: Path, *, height: int, width: int) -> None:
        self._dataset = dataset
        self._folder = folder
        self._size = (width, height)
        names = dataset.dataframe.column_names
        try:
            self._columns = find_columns(names)
        except ValueError as error:
            raise ValueError(f"data.train_files: {error}") from error
        for name in self._columns.images:
            if isinstance(dataset.dataframe.features[name], ImageFeature):  # whose rows would be decoded images
                dataset.dataframe = dataset.dataframe.cast_column(name, ImageFeature(decode=False))
        kept = []
        read = [name for name in (*self._columns.names, FOLDER) if name in names]
        for number, row in enumerate(dataset.dataframe.select_columns(read)):
            if problem := self._columns.problem(row, self._folder_of(row)) or self._unreadable(row):
                raise ValueError(f"row {number} of data.train_files: {problem}")
            if self._columns.order(row) is not None:
                kept.append(number)
        self._numbers = kept  # in the files, of the rows that are trained on
        ties = len(dataset.dataframe) - len(kept)
        if not kept:
            raise ValueError(f"data.train_files: none of {ties} rows prefers an image: {self._columns.label} is 0.5")
        self.notes: list[str] = []
        if ties:
            dataset.dataframe = dataset.dataframe.select(kept)
            rows = f"{ties} of {ties + len(kept)} rows"
            self.notes.append(
                f"data.train_files: {rows} prefer neither image ({self._columns.label}), and are left out"
            )
        if unread := unread_columns(names):
            self.notes.append(
                f"data.train_files: not read, because training encodes images and prompts: {', '.join(unread)}"
            )

    def update_request(self, rows: Sequence[int], seed: int) -> DataProto:
        """The request of an update on some rows; the ranks encode prompts and images.

        Args:
            seed: seed of the noise that the pairs are trained on.

        Raises:
            ImageNotFound: the file of an image is damaged, or has gone; the message names the row.
        """
        pixels = torch.stack([self._pixels(row) for row in rows])
        prompts = [prompt_text(self._dataset[row]["raw_prompt"]) for row in rows]
        return DataProto.from_dict(
            tensors={"pixels": pixels, "preferred": torch.ones(len(rows)), "draw_seeds": draw_seeds(len(rows), seed)},
            non_tensors={"prompts": objects(prompts)},
            meta_info={"request": {}},
        )

    def _pixels(self, row: int) -> Tensor:
        """Pixels of the preferred image of a row and of the other, uint8 [2, 3, H, W]."""
        pair = self._dataset.dataframe[row]
        order = self._columns.order(pair)
        assert order is not None  # other rows are not in the data set
        try:
            return torch.stack([self._read(pair[name], self._folder_of(pair)) for name in order])
        except ImageNotFound as error:  # the start looked at the beginnings of files only
            raise ImageNotFound(f"row {self._numbers[row]} of data.train_files: {error}") from error

    def _folder_of(self, row: Mapping[str, Any]) -> Path:
        return Path(row.get(FOLDER) or self._folder)

    def _read(self, value: Any, folder: Path) -> Tensor:
        """Pixels, uint8 [3, H, W], upright as viewers show it to those who prefer it."""
        image = ImageOps.fit(as_rgb(open_image(value, folder)), self._size, Image.Resampling.LANCZOS)
        return torch.from_numpy(np.array(image)).permute(2, 0, 1)

    def _unreadable(self, row: Mapping[str, Any]) -> str | None:
        """Why an image of a row cannot be read, as far as the beginning of its file shows; None if they can."""
        for name in self._columns.images:
            try:
                open_image(row[name], self._folder_of(row)).close()
            except ImageNotFound as error:
                return f"{name}: {error}"
        return None
