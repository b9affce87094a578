"""`StepRecorder`: the metrics of a step, in the run folder, in trackers and in the exported metrics, and warnings."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from verl_omni.trainer.metrics import step_metrics
from verl_omni.trainer.metrics.exported import TrainerMetrics
from verl_omni.trainer.metrics.run_warnings import RunWarnings
from verl_omni.trainer.run.run_folder import RunFolder, ShownSample
from verl_omni.trainer.run.trackers import Trackers


class StepRecorder:
    """Records the steps and evaluations of a run; each number counts once, also if a step is recorded twice.

    Args:
        total: steps of the run.
        warnings: the run's warnings; None: the run has no scorers that only evaluate.
    """

    def __init__(
        self,
        folder: RunFolder,
        total: int,
        tracking: Trackers | None = None,
        warnings: RunWarnings | None = None,
    ) -> None:
        self.exported = TrainerMetrics()
        self.tracking = tracking
        self.warnings = warnings or RunWarnings(folder)
        self._folder = folder
        self._total = total
        self._step_seconds: list[float] = []
        self._optimizer_steps = 0.0  # since this process started
        self._samples = 0  # for training, since this process started
        self._unscored = 0  # training samples without a reward
        self._pending: dict[str, Any] | None = None  # metrics of an update whose weights are not yet published

    def start(self, step: int) -> None:
        """Begin after a step; warnings about the steps before it have been given."""
        self.warnings.restore()
        self.exported.started(step, self._total)

    def observe_samples(self, step: int, samples: Any) -> dict[str, Any]:
        """Count the `ScoredSamples` of a step; returns metrics of their rewards."""
        count = len(samples.scores)
        self._samples += count
        self._unscored += int(samples.scores.isnan().sum())
        self.exported.generated(count)
        self.observe_scores(step, samples)
        rewards = step_metrics.rewards(samples.scores, samples.extras)
        counts = {"rollout/samples_lost": samples.times_lost, "rollout/requests_aborted": samples.times_aborted}
        images = step_metrics.image_statistics(samples.statistics, samples.groups)
        return rewards | step_metrics.reward_spread(samples.scores, samples.groups) | images | counts

    def observe_scores(self, step: int, samples: Any) -> None:
        """Warn of `ScoredSamples` that scorers could not score."""
        self.warnings.observe_scores(step, samples.failures, samples.extras)

    def updated(self, metrics: dict[str, Any]) -> None:
        """Keep the metrics of a step until it is recorded: a run that ends before that has trained on it."""
        self._pending = metrics
        self._optimizer_steps += metrics["actor/optimizer_steps"]

    def finished(self, metrics: dict[str, Any]) -> None:
        """Record a step that is published, and evaluated if it was due."""
        self._step_seconds.append(metrics["timing_s/step"])
        self.record(metrics, step_metrics.eta(self._step_seconds, self._total - metrics["step"]))
        self._pending = None

    def record_pending(self) -> None:
        """Record a step before it is published, because it is saved now."""
        if self._pending is not None:
            self.record(self._pending)
            self._pending = None

    def record(self, metrics: dict[str, Any], eta_s: float | None = None) -> None:
        """Record metrics of a step, or of an evaluation after it."""
        held_out = {
            scorer: metrics[name]
            for scorer in self.warnings.held_out
            if (name := f"val/reward/{scorer}/mean") in metrics
        }
        new = self._folder.step(metrics, eta_s, samples=self._samples, unscored=self._unscored, held_out=held_out)
        if self.tracking is not None:
            self.tracking.log(data=new, step=metrics["step"])
        self.warnings.observe(metrics["step"], new)
        self.exported.step(new, collapsed=self.warnings.collapsed)

    @property
    def pictures(self) -> int:
        """How many samples of an evaluation trackers show."""
        return 0 if self.tracking is None else self.tracking.pictures

    def show(self, step: int, samples: Sequence[ShownSample], tracked: Sequence[ShownSample], video_fps: float) -> None:
        """Write samples of an evaluation into the run folder, and show some in trackers."""
        self._folder.samples(step, samples, video_fps)
        if self.tracking is not None:
            self.tracking.show(step, tracked)

    def check_learning(self) -> None:
        """Check that the run has learned something.

        Raises:
            FloatingPointError: there were steps, and no optimizer step was taken in any of them.
        """
        if self._step_seconds and not self._optimizer_steps:
            raise FloatingPointError("no optimizer step of this run was taken: none of its gradients was finite")


@contextmanager
def timed(metrics: dict[str, Any], name: str) -> Iterator[None]:
    """Add the seconds of a block to the metrics, as `timing_s/<name>`."""
    began = time.perf_counter()
    yield
    metrics[f"timing_s/{name}"] = metrics.get(f"timing_s/{name}", 0.0) + time.perf_counter() - began
