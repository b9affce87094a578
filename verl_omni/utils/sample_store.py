"""Training tensors of samples in Ray's object store, from the process that made them to the ranks that train on them.

The driver holds references only. Many samples are one object of the store. Tensors that samples have in common, such as
the embeddings of their prompt, are in it once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from verl_omni.utils.packed_tensors import PackedTensors, Packer, Place

Reference = Any  # ray.ObjectRef
Put = Callable[[PackedTensors], Reference]
Get = Callable[[list[Reference]], Sequence[PackedTensors]]
OBJECT_BYTES = 128 << 20  # samples wait for each other until they have so many bytes together, or the batch ends


@dataclass(frozen=True, slots=True)
class StoredSample:
    """The training tensors of one sample."""

    reference: Reference
    """An object of the store, `PackedTensors` of several samples."""
    row: int
    """The sample's row in it."""


@dataclass(slots=True)
class SampleWriter:
    """Stores the samples of one batch.

    Args:
        put: stores an object, as `ray.put` does.
    """

    put: Put
    _waiting: Packer = field(default_factory=Packer)
    _stored: list[StoredSample] = field(default_factory=list)

    def add(self, tensors: dict[str, Tensor]) -> int:
        """Store a sample's tensors, without a batch dimension, soon. Returns its number, from 0."""
        self._waiting.add(tensors)
        number = len(self._stored) + len(self._waiting) - 1
        if self._waiting.nbytes >= OBJECT_BYTES:
            self._write()
        return number

    def finish(self) -> list[StoredSample]:
        """Store the samples that wait. Returns all samples, by their numbers."""
        if len(self._waiting):
            self._write()
        return self._stored

    def _write(self) -> None:
        reference = self.put(self._waiting.packed())
        self._stored += [StoredSample(reference, row) for row in range(len(self._waiting))]
        self._waiting = Packer()


class SharedRows:
    """Rows [*B, ...] of a table [T, ...] in which some rows of the batch are the same one.

    It stands for a tensor of a training batch until `to` a device gathers its rows, so that CPU memory holds each
    row of the table once.

    Args:
        index: rows of the table, int64 [*B].
    """

    def __init__(self, table: Tensor, index: Tensor) -> None:
        self.table = table
        self.index = index

    def __len__(self) -> int:
        return len(self.index)

    @property
    def shape(self) -> torch.Size:
        """Shape of the tensor that it stands for."""
        return torch.Size((*self.index.shape, *self.table.shape[1:]))

    def __getitem__(self, chosen: Tensor) -> SharedRows:
        return SharedRows(self.table, self.index[chosen])

    def to(self, device: torch.device | None) -> Any:
        """The rows as a tensor on `device`; unchanged for None."""
        return self if device is None else self.table[self.index].to(device)


def load(rows: Sequence[Sequence[StoredSample]], get: Get) -> dict[str, Any]:
    """Training tensors of rows that hold one or more samples each.

    Args:
        rows: [B] rows of S samples.
        get: loads several references, as `ray.get` does; each reference is loaded once.

    Returns:
        Tensors by name, [B, ...] for S = 1, otherwise [B, S, ...]; `SharedRows` for tensors that samples share. Tensors
        of different lengths in their first dimension are padded with zeros on the right.

    Raises:
        KeyError: a sample lacks a tensor that the first one has.
    """
    samples = [sample for row in rows for sample in row]
    shape = (len(rows),) if all(len(row) == 1 for row in rows) else (len(rows), len(rows[0]))
    references = list(dict.fromkeys(sample.reference for sample in samples))
    parts = dict(zip(references, get(references), strict=True))
    copies: dict[Reference, dict[Place, Tensor]] = {reference: {} for reference in references}
    loaded = [parts[sample.reference].row(sample.row, copies[sample.reference]) for sample in samples]
    return {name: _rows_of(name, loaded, shape) for name in loaded[0]}


def _rows_of(name: str, samples: Sequence[Mapping[str, Tensor]], shape: tuple[int, ...]) -> Any:
    for number, sample in enumerate(samples):
        if name not in sample:
            raise KeyError(f"{name} is missing in sample {number}, sample 0 has it")
    numbers: dict[int, int] = {}  # identity of a distinct tensor -> its row in the table
    distinct: list[Tensor] = []
    index = []
    for sample in samples:
        tensor = sample[name]
        if id(tensor) not in numbers:
            numbers[id(tensor)] = len(distinct)
            distinct.append(tensor)
        index.append(numbers[id(tensor)])
    table = _stacked(distinct)
    if len(distinct) == len(samples):
        return table.view(*shape, *table.shape[1:])
    return SharedRows(table, torch.tensor(index).view(shape))


def _stacked(tensors: Sequence[Tensor]) -> Tensor:
    same = len({tensor.shape for tensor in tensors}) == 1
    return torch.stack(list(tensors)) if same else pad_sequence(list(tensors), batch_first=True)
