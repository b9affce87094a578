"""The seam between an actor, which knows optimiser and micro-batches, and what is learned."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from verl_omni.workers.actor.policy import Batch


class Objective(Protocol):
    """A loss over a batch whose tensors all have one entry a row; lives for one update.

    Attributes:
        samples_per_row: pictures that one row holds.
    """

    samples_per_row: int

    def prepared(self, batch: Batch) -> Batch:
        """The batch with whatever is drawn once for it."""

    def passes(self, batch: Batch) -> int:
        """How many terms a row's loss is the mean of; each is a forward pass of its own."""

    def learning(self, batch: Batch) -> Tensor:
        """Which rows have a gradient, bool [B]."""

    def term(self, part: Batch, place: int) -> tuple[Tensor, dict[str, Tensor]]:
        """One term of the loss of each row [B] with its gradient, and what was measured on the way, [B] each."""

    def summary(self, measured: dict[str, Tensor], count: int) -> dict[str, float]:
        """Metrics of an optimizer step before it is taken; names ending in `_max` are maxima.

        Args:
            measured: all terms' measures, concatenated.
            count: terms of the batch, with those of rows that have no gradient.

        Raises:
            LogProbMismatch: the batch must not be learned from.
        """

    def finished(self) -> None:
        """The update's last optimizer step was taken."""
