"""`TrainerMetrics`: the exported metrics of the training loop."""

from collections.abc import Mapping
from typing import Any

from verl_omni.utils.metrics import exported_metrics as exported
from verl_omni.utils.metrics.metrics_writer import MetricsWriter

# Metrics of a step's line that are exported, if they were measured in it.
GAUGES = {"step": exported.STEP, "reward/mean": exported.REWARD, "val/reward/mean": exported.VALIDATION_REWARD}
COUNTERS = {
    "actor/optimizer_steps": exported.OPTIMIZER_STEPS,
    "actor/skipped_steps": exported.SKIPPED_STEPS,
    "reward/constant_prompts": exported.CONSTANT_PROMPTS,
    "rollout/samples_lost": exported.SAMPLES_LOST,
    "rollout/requests_aborted": exported.REQUESTS_ABORTED,
}


class TrainerMetrics:
    """Writes what happens in the training loop."""

    def __init__(self, writer: MetricsWriter | None = None) -> None:
        self._writer = writer or MetricsWriter()

    def started(self, step: int, steps: int) -> None:
        """Record the step that a run starts from, and the steps that it has in total."""
        self._writer.set(exported.STEP, step)
        self._writer.set(exported.STEPS, steps)

    def publishing(self, version: int) -> None:
        """Record that the trainer begins to send weights."""
        self._writer.set(exported.PUBLISHED, version)

    def generated(self, samples: int) -> None:
        """Record training samples that were generated and scored."""
        self._writer.add(exported.GENERATED, samples)

    def trained(self, samples: int) -> None:
        """Record the samples of an update."""
        self._writer.add(exported.TRAINED, samples)

    def step(self, line: Mapping[str, Any], *, collapsed: bool) -> None:
        """Record the metrics of a step or an evaluation.

        Args:
            line: as in `metrics.jsonl`. collapsed: whether the samples count as collapsed after it.
        """
        for name, gauge in GAUGES.items():
            if name in line:
                self._writer.set(gauge, line[name])
        for name, counter in COUNTERS.items():
            self._writer.add(counter, line.get(name, 0))
        for phase in exported.PHASES:
            self._writer.add(exported.PHASE_SECONDS, line.get(f"timing_s/{phase}", 0), phase=phase)
        self._writer.set(exported.COLLAPSED, collapsed)
