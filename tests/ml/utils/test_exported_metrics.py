"""Exported metrics: their names, and the writer that passes them to Ray."""

import math
import re

import pytest

from verl_omni.utils.metrics.exported_metrics import PHASE_SECONDS, PHASES, ROLLOUT, SKIPPED_STEPS, STEP, TRAINER
from verl_omni.utils.metrics.metrics_writer import MetricsWriter

ALL = (*TRAINER, *ROLLOUT)


def test_names_units_and_labels_follow_prometheus_conventions() -> None:
    assert len({metric.name for metric in ALL}) == len(ALL) > 10
    for metric in ALL:
        assert re.fullmatch(r"omni_[a-z_]+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        for unit in ("seconds", "bytes"):
            assert (f"_{unit}" in metric.name) == (metric.unit == unit), metric.name
        assert metric.text.endswith("."), metric.name
        # Labels that Ray or a PodMonitor adds must not hide ours.
        assert set(metric.labels) <= {"phase", "replica"}, metric.name
    assert PHASE_SECONDS.labels == ("phase",) and len(PHASES) == len(set(PHASES))


def test_values_reach_rays_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.util import metrics

    seen: list[tuple[str, float, dict[str, str]]] = []
    monkeypatch.setattr(
        metrics.Metric, "_record", lambda self, value, tags=None: seen.append((self.info["name"], value, tags or {}))
    )
    writer = MetricsWriter({})
    writer.set(STEP, 3)
    writer.add(PHASE_SECONDS, 1.5, phase="update")
    writer.add(SKIPPED_STEPS, 0)
    assert seen == [("omni_step", 3.0, {}), ("omni_phase_seconds_total", 1.5, {"phase": "update"})]
    for wrong in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match=r"cannot add|must be >0"):
            writer.add(SKIPPED_STEPS, wrong)
