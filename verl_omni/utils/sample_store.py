"""Training tensors of samples in Ray's object store, from the process that made them to the ranks that train on them.

The driver holds references only. What all samples of a prompt have in common, such as its embeddings, is stored once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

Reference = Any  # ray.ObjectRef
Put = Callable[[dict[str, Tensor]], Reference]
Get = Callable[[list[Reference]], Sequence[Mapping[str, Tensor]]]


@dataclass(frozen=True, slots=True)
class StoredSample:
    """The training tensors of one sample.

    Attributes:
        parts: references of dicts of tensors by name, [...] without a batch dimension. Samples may share a part.
    """

    parts: tuple[Reference, ...]


@dataclass(slots=True)
class SampleWriter:
    """Stores the samples of one batch.

    Args:
        put: stores a dict of tensors, as `ray.put` does.
    """

    put: Put
    _shared: dict[str, Reference] = field(default_factory=dict)

    def store(self, own: dict[str, Tensor], shared: Mapping[str, dict[str, Tensor]]) -> StoredSample:
        """Store a sample.

        Args:
            own: tensors of this sample alone.
            shared: tensors by a key of the inputs that determine them. For samples with the same key, only the first
                sample's tensors are stored.
        """
        parts = [self.put(own)]
        for key, tensors in shared.items():
            if key not in self._shared:
                self._shared[key] = self.put(tensors)
            parts.append(self._shared[key])
        return StoredSample(tuple(parts))


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
    references = list(dict.fromkeys(part for sample in samples for part in sample.parts))
    parts = dict(zip(references, get(references), strict=True))
    names = [name for part in samples[0].parts for name in parts[part]]
    return {name: _rows_of(name, samples, parts, shape) for name in names}


def _rows_of(
    name: str,
    samples: Sequence[StoredSample],
    parts: Mapping[Reference, Mapping[str, Tensor]],
    shape: tuple[int, ...],
) -> Any:
    holders = []
    for place, sample in enumerate(samples):
        found = [part for part in sample.parts if name in parts[part]]
        if not found:
            raise KeyError(f"{name} is missing in sample {place}, sample 0 has it")
        holders.append(found[0])
    distinct = list(dict.fromkeys(holders))
    table = _stacked([parts[part][name] for part in distinct])
    if len(distinct) == len(samples):
        return table.view(*shape, *table.shape[1:])
    places = {part: place for place, part in enumerate(distinct)}
    return SharedRows(table, torch.tensor([places[part] for part in holders]).view(shape))


def _stacked(tensors: Sequence[Tensor]) -> Tensor:
    same = len({tensor.shape for tensor in tensors}) == 1
    return torch.stack(list(tensors)) if same else pad_sequence(list(tensors), batch_first=True)
