"""`Measurements`: an objective's measurements in an optimizer step, for the rows of all ranks."""

from collections.abc import Mapping

import torch
from torch import Tensor

LEARNS = "learns"  # whether the row of a term has a gradient, bool; besides the names of an objective


class Measurements:
    """Collects the measurements of an optimizer step, so that metrics depend neither on ranks nor on micro-batches.

    One process computes only rows with a gradient (`DiffusionActor._learning`), several ranks all: every rank needs the
    same passes. A mean over ranks of their means would count rows differently.

    Args:
        ranks: number of ranks of the trainer.
    """

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._found: dict[str, list[Tensor]] = {}

    def add(self, found: Mapping[str, Tensor], learns: Tensor) -> None:
        """Add the measurements of a term, [B] each.

        Args:
            learns: mask of the rows with a gradient, bool [B].
        """
        for name, values in {**found, LEARNS: learns}.items():
            self._found.setdefault(name, []).append(values)

    def of_all_ranks(self) -> dict[str, Tensor]:
        """Measurements of all rows with a gradient, or of all rows if none has one, in CPU memory. A collective."""
        ranks = [{name: torch.cat(values).cpu() for name, values in self._found.items()}]
        if self._ranks > 1:
            gathered: list[dict[str, Tensor]] = [{}] * self._ranks
            torch.distributed.all_gather_object(gathered, ranks[0])
            ranks = gathered
        names = dict.fromkeys(name for rank in ranks for name in rank)
        joined = {name: torch.cat([rank[name] for rank in ranks if name in rank]) for name in names}
        learns = joined.pop(LEARNS)
        if learns.all() or not learns.any():
            return joined
        return {name: values[learns] for name, values in joined.items()}
