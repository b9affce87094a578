"""Runs that train nothing, and what any run records: events in its folder, and exported metrics."""

import json
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from verl_omni.trainer import main_diffusion
from verl_omni.trainer.run.operator_reporter import NullReporter
from verl_omni.utils.metrics.exported_metrics import ExportedMetric
from verl_omni.utils.metrics.metrics_writer import MetricsWriter


class Recorder(MetricsWriter):
    """Keeps gauges and sums of counters in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[str, float] = {}
        self.published: list[float] = []

    def set(self, metric: ExportedMetric, value: float, **labels: str) -> None:
        self.values["/".join([metric.name, *labels.values()])] = value
        if metric.name == "omni_weight_version_published":
            self.published.append(value)

    def add(self, metric: ExportedMetric, value: float, **labels: str) -> None:
        name = "/".join([metric.name, *labels.values()])
        self.values[name] = self.values.get(name, 0) + value


def settings(folder: Path, **trainer: Any) -> DictConfig:
    """The settings of `trainer` that the start and the end of a run read."""
    base = {"default_local_dir": str(folder), "resume_mode": "auto", "total_training_steps": 4, "output": {"url": None}}
    return OmegaConf.create({"trainer": {**base, **trainer}})


def run(config: DictConfig, train: Any, **more: Any) -> int:
    """The exit code of a run that `train` stands for."""
    return main_diffusion.run_training(config, NullReporter(), train, **more)


def events(folder: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """The events of a run folder, or only events of one kind."""
    lines = [json.loads(line) for line in (folder / "progress.jsonl").read_text().splitlines()]
    return [line for line in lines if kind in (None, line["event"])]
