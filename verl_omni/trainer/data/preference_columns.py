"""PURE: columns of preference data sets: which image of a row is preferred, and which columns are not read."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# A row that prefers neither image has the label 0.5, or none.
LABELS = {1: (0, 1), 0: (1, 0), 0.5: None, None: None}
UNREAD = ("embed", "latent")  # in names of columns: what the reference's data script computes for its trainer


@dataclass(frozen=True, slots=True)
class PairColumns:
    """Columns of pairs of images.

    Attributes:
        images: columns of the two images; the first is preferred, unless there is a label.
        label: column that is 1 where the first image is preferred, 0 where the second is; None: there is none.
    """

    images: tuple[str, str]
    label: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """All columns."""
        return (*self.images, *([] if self.label is None else [self.label]))

    def order(self, row: Mapping[str, Any]) -> tuple[str, str] | None:
        """The columns of the preferred and the other image; None if the row prefers neither.

        Raises:
            ValueError: the label has another value.
        """
        if self.label is None:
            return self.images
        label = row.get(self.label)
        if isinstance(label, bool | str) or label not in LABELS:
            raise ValueError(f"{self.label} is {label!r}, not 1 ({self.images[0]} is preferred), 0 or 0.5 (neither)")
        places = LABELS[label]
        return None if places is None else (self.images[places[0]], self.images[places[1]])

    def problem(self, row: Mapping[str, Any], folder: Path) -> str | None:
        """Why a row has no pair, as far as its columns were read; None if it has one, or prefers neither image.

        Args:
            folder: that relative paths start from.
        """
        try:
            order = self.order(row)
        except ValueError as error:
            return str(error)
        for name in self.images:
            if name not in row:
                continue
            value = row[name]
            if not value or (isinstance(value, Mapping) and not (value.get("bytes") or value.get("path"))):
                return f"{name} is {value}, neither a path nor bytes"
            path = image_path(value, folder)
            if path is not None and not path.is_file():
                return f"{name} is {path}, which does not exist"
        first, second = (row.get(name) for name in self.images)
        if order is not None and first is not None and first == second:
            return f"{' and '.join(self.images)} are the same image, so there is nothing to prefer: remove the row"
        return None


LAYOUTS = (
    PairColumns(("chosen", "rejected")),
    PairColumns(("img_win", "img_lose")),  # the reference's data script
    PairColumns(("jpg_0", "jpg_1"), "label_0"),  # Pick-a-Pic
)


def find_columns(names: Collection[str]) -> PairColumns:
    """The columns of pairs among the columns of a data set.

    Raises:
        ValueError: there are none.
    """
    for layout in LAYOUTS:
        if all(name in names for name in layout.names):
            return layout
    wanted = "; ".join(", ".join(layout.names) for layout in LAYOUTS)
    raise ValueError(
        "there are no pairs of images, which algorithm.sample_source=offline trains on: the columns are "
        f"{', '.join(names) or 'none'}, and a pair is in one of these groups: {wanted}"
    )


def unread_columns(names: Sequence[str]) -> list[str]:
    """Columns of encoded images and prompts, which training encodes itself."""
    return [name for name in names if any(part in name for part in UNREAD)]


def image_path(value: Any, folder: Path) -> Path | None:
    """Path of an image's file; None if the value has its bytes.

    Args:
        value: a path, bytes, or a mapping with `bytes` or `path`.
    """
    if isinstance(value, bytes):
        return None
    if isinstance(value, Mapping):
        return None if value.get("bytes") else folder / value["path"]
    return folder / value
