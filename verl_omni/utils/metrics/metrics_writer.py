"""`MetricsWriter`: writes exported metrics through Ray."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from verl_omni.utils.metrics.exported_metrics import ExportedMetric


@dataclass
class MetricsWriter:
    """Writes metrics of this process; Ray exports the metrics of all processes of a node on its metrics port.

    Args:
        labels: labels of all its metrics that have them.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    _made: dict[str, Any] = field(default_factory=dict, init=False)

    def set(self, metric: ExportedMetric, value: float, **labels: str) -> None:
        """Set a gauge."""
        self._of(metric).set(float(value), {**self.labels, **labels})

    def add(self, metric: ExportedMetric, value: float, **labels: str) -> None:
        """Add to a counter; nothing for 0, which Ray refuses.

        Raises:
            ValueError: the value is negative, or not finite.
        """
        if not math.isfinite(value):
            raise ValueError(f"{metric.name}: cannot add {value}")
        if value != 0:
            self._of(metric).inc(float(value), {**self.labels, **labels})

    def _of(self, metric: ExportedMetric) -> Any:
        """Ray's metric of that name, made at its first value."""
        if metric.name not in self._made:
            from ray.util import metrics

            kind = {"gauge": metrics.Gauge, "counter": metrics.Counter}[metric.kind]
            self._made[metric.name] = kind(metric.name, metric.text, metric.labels)
        return self._made[metric.name]
