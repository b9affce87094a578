"""PURE: the tensors of many samples in one contiguous buffer, which Ray stores and sends as one object.

Each tensor alone would be pickled by `torch.save`, which takes longer than the copy of a small sample.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

ALIGNMENT = 64  # bytes: more than any element
SHARED_BYTES = 1024  # size of the smallest tensor that rows share; smaller ones are not worth a comparison
COMPARED_BYTES = 64  # at either end of a tensor, before it is compared with another one as a whole


class Place(NamedTuple):
    """A tensor of the buffer."""

    dtype: str
    """Name of the dtype in torch, e.g. `bfloat16`."""
    shape: tuple[int, ...]
    start: int
    """First byte in the buffer."""


@dataclass(frozen=True, slots=True)
class PackedTensors:
    """Tensors by name for each of several rows, in one buffer.

    Large tensors of two rows with the same bytes, dtype and shape, such as the embeddings of a prompt, are in it once.
    """

    buffer: np.ndarray[Any, Any]
    """uint8 [bytes]."""
    places: list[dict[str, Place]]
    """Where the tensors of each row are, by name."""

    def row(self, number: int, loaded: dict[Place, Tensor] | None = None) -> dict[str, Tensor]:
        """Copies of the tensors of a row, by name.

        Args:
            loaded: tensors that are already copied; this row's are added to them: rows share them.
        """
        copies = {} if loaded is None else loaded
        tensors = {}
        for name, place in self.places[number].items():
            if place not in copies:
                copies[place] = self._copy(place)
            tensors[name] = copies[place]
        return tensors

    def rows(self) -> list[dict[str, Tensor]]:
        """Copies of all tensors; rows share those that are in the buffer once."""
        loaded: dict[Place, Tensor] = {}
        return [self.row(number, loaded) for number in range(len(self.places))]

    def _copy(self, place: Place) -> Tensor:
        dtype = getattr(torch, place.dtype)
        size = dtype.itemsize
        for length in place.shape:
            size *= length
        if size == 0:
            return torch.empty(place.shape, dtype=dtype)
        # A copy, because the buffer of a received object is memory that other processes read.
        values = torch.from_numpy(self.buffer[place.start : place.start + size].copy())
        return values.view(dtype).view(place.shape)


class Packer:
    """Collects the tensors of rows, which may be on any device, for one buffer."""

    def __init__(self) -> None:
        self.nbytes = 0
        """Size of the buffer."""
        self._places: list[dict[str, Place]] = []
        self._contents: list[tuple[int, Tensor]] = []  # first byte in the buffer, uint8 [bytes]
        self._known: dict[tuple[Any, ...], list[tuple[Tensor, Place]]] = {}

    def __len__(self) -> int:
        """Number of rows."""
        return len(self._places)

    def add(self, row: Mapping[str, Tensor]) -> None:
        """Add the tensors of a row, by name; they must not be changed before `packed`."""
        self._places.append({name: self._place(tensor) for name, tensor in row.items()})

    def packed(self) -> PackedTensors:
        """All rows, copied to one buffer."""
        buffer = np.empty(self.nbytes, dtype=np.uint8)
        for start, content in self._contents:
            buffer[start : start + len(content)] = content.numpy()
        return PackedTensors(buffer, self._places)

    def _place(self, tensor: Tensor) -> Place:
        content = _bytes(tensor)
        place = Place(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), self.nbytes)
        if len(content) >= SHARED_BYTES:
            alike = self._known.setdefault((place.dtype, place.shape, *_ends(content)), [])
            for stored, known in alike:
                if torch.equal(stored, content):
                    return known
            alike.append((content, place))
        self._contents.append((place.start, content))
        self.nbytes += -(-len(content) // ALIGNMENT) * ALIGNMENT
        return place


def pack(rows: Iterable[Mapping[str, Tensor]]) -> PackedTensors:
    """The tensors of rows in one buffer."""
    packer = Packer()
    for row in rows:
        packer.add(row)
    return packer.packed()


def _bytes(tensor: Tensor) -> Tensor:
    """The bytes of a tensor, uint8 [bytes], in CPU memory."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8) if len(flat) else flat.new_empty(0, dtype=torch.uint8)


def _ends(content: Tensor) -> tuple[bytes, bytes]:
    """The first and the last bytes, which seldom are the same in tensors that are not."""
    return content[:COMPARED_BYTES].numpy().tobytes(), content[-COMPARED_BYTES:].numpy().tobytes()
