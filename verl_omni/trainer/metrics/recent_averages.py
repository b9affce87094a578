"""PURE: averages of metrics over the last steps that recorded them, and over the first ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

WINDOW = 5  # steps that are averaged


@dataclass(frozen=True, slots=True)
class RecentAverages:
    """Values of metrics up to a step."""

    recent: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Values of the last `WINDOW` steps that recorded a metric."""
    first: Mapping[str, float] = field(default_factory=dict)
    """Average of a metric's first `WINDOW` values; absent before that many."""

    def observe(self, names: Iterable[str], metrics: Mapping[str, float | None]) -> RecentAverages:
        """The averages after a step, of which only finite values count."""
        recent = dict(self.recent)
        first = dict(self.first)
        for name in names:
            value = metrics.get(name)
            if value is None or not math.isfinite(value):
                continue
            recent[name] = (*recent.get(name, ()), value)[-WINDOW:]
            if name not in first and len(recent[name]) == WINDOW:
                first[name] = sum(recent[name]) / WINDOW
        return RecentAverages(recent, first)

    def average(self, name: str) -> float | None:
        """Average of a metric's last `WINDOW` values; None before that many."""
        values = self.recent.get(name, ())
        return sum(values) / WINDOW if len(values) == WINDOW else None
