"""`GradientAccumulation`: the gradients of an optimizer step, from rows that may arrive in parts."""

from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor

from verl_omni.workers.actor.measurements import Measurements
from verl_omni.workers.actor.policy import Batch
from verl_omni.workers.algorithms.base import Objective


class GradientAccumulation:
    """Computes the terms of a mini-batch in micro-batches, and accumulates their gradients.

    The micro-batches are the same however the rows are divided into parts: rows that do not fill one wait for the next
    part. Without a size, each part is one micro-batch.

    Args:
        rows: rows of the mini-batch of this rank.
        micro: rows of a micro-batch; None: all rows of a part.
        every_row: whether rows without a gradient are computed too: several ranks must run the same collectives.
        before_pass: called before each pass, with whether it is the last one.
    """

    def __init__(
        self,
        objective: Objective,
        measurements: Measurements,
        device: torch.device,
        *,
        rows: int,
        micro: int | None,
        every_row: bool,
        sequence_ranks: int = 1,
        before_pass: Callable[[bool], None] = lambda is_last: None,
    ) -> None:
        self.loss = 0.0
        """Mean over the rows that have been computed, as far as they are."""
        self.terms = 0
        """Number of terms of the mini-batch."""
        self.measurements = measurements
        self._objective = objective
        self._device = device
        self._rows = rows
        self._micro = micro
        self._every_row = every_row
        self._sequence_ranks = sequence_ranks
        self._before_pass = before_pass
        self._computed = False
        self._waiting: deque[tuple[Batch, Tensor]] = deque()
        """Parts with the places of their rows that are not computed yet."""
        self._idle: list[tuple[Batch, Tensor]] = []
        """Parts with the places of their rows that have no gradient."""

    def add(self, batch: Batch, *, is_last: bool) -> None:
        """Compute the micro-batches that this part fills; after the last part, all rows are computed."""
        places = torch.arange(size(batch))
        learning = places if self._every_row else self._objective.rows_with_gradient(batch).nonzero().flatten()
        if len(learning):
            self._waiting.append((batch, learning))
        if len(learning) < len(places) and not self._computed:
            self._idle.append((batch, places))
        if is_last and not self._computed and not self._waiting:
            self._waiting.extend(self._idle)  # no row has a gradient: their metrics are still computed
        self._idle = [] if self._computed or self._waiting else self._idle
        self._compute_waiting(is_last)

    def _compute_waiting(self, is_last: bool) -> None:
        while self._waiting:
            waiting = sum(len(places) for _, places in self._waiting)
            if self._micro is not None and waiting < self._micro and not is_last:
                return
            count = waiting if self._micro is None else min(self._micro, waiting)
            self._compute(self._take(count), is_last and count == waiting)

    def _take(self, count: int) -> Batch:
        """The next rows that wait, on the device."""
        pieces = []
        while count:
            batch, places = self._waiting.popleft()
            pieces.append(chosen_rows(batch, places[:count], self._device))
            if len(places) > count:
                self._waiting.appendleft((batch, places[count:]))
            count -= min(count, len(places))
        if len(pieces) == 1:
            return pieces[0]
        return {name: torch.cat([piece[name] for piece in pieces]) for name in pieces[0]}

    def _compute(self, part: Batch, is_last: bool) -> None:
        self._computed = True
        learns = self._objective.rows_with_gradient(part)
        passes = self._objective.term_count(part)
        self.terms = self._rows * passes
        for index in range(passes):
            self._before_pass(is_last and index == passes - 1)
            term, measured = self._objective.term(part, index)
            # The sum over all micro-batches and terms is the mean over the mini-batch.
            share = term.sum() / self.terms
            # FSDP2 averages gradients over all ranks, but the gradients of a sequence's parts must be summed.
            (share * self._sequence_ranks).backward()
            self.loss += share.item()
            self.measurements.add(measured, learns)


def size(batch: Batch) -> int:
    """Number of rows."""
    return len(next(iter(batch.values())))


def chosen_rows(batch: Batch, chosen: Tensor | slice, device: torch.device | None = None) -> Batch:
    """Rows of a batch, on a device; None: where they are."""
    return {name: tensor[chosen].to(device) for name, tensor in batch.items()}
