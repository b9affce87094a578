"""PURE: the samples that waited for generation, or the requests for the judge, as far back as autoscaling looks."""

from dataclasses import dataclass
from datetime import datetime, timedelta

LONGEST = timedelta(hours=1)  # largest allowed stabilizationSeconds
PEAKS_KEPT = 64


@dataclass(frozen=True, slots=True)
class QueueHistory:
    """Numbers of samples or requests that waited, as reported.

    Attributes:
        since: the first report.
        peaks: times and numbers, the last one last. An earlier one is kept as long as no later one is as large.
    """

    since: datetime
    peaks: tuple[tuple[datetime, int], ...]

    @property
    def last(self) -> int:
        """The number in the last report."""
        return self.peaks[-1][1]

    @property
    def at(self) -> datetime:
        """The last report."""
        return self.peaks[-1][0]

    def most(self, since: datetime) -> int:
        """The largest number from a time on; the last one if none is that new."""
        return max((number for at, number in self.peaks if at > since), default=self.last)


def add_peak(history: QueueHistory | None, waiting: int, now: datetime) -> QueueHistory:
    """The history with one more report.

    If there are too many peaks, the two oldest are merged: the larger value at the later time. A time after `now` is
    from before the clock was set back, and counts as `now`.
    """
    earlier = history.peaks if history else ()
    kept = [(min(at, now), number) for at, number in earlier if number > waiting and at > now - LONGEST]
    if len(kept) >= PEAKS_KEPT:
        (_, largest), (later, _), *newer = kept
        kept = [(later, largest), *newer]
    return QueueHistory(min(history.since, now) if history else now, (*kept, (now, waiting)))
