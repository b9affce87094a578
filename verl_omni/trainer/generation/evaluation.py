"""`Evaluation`: scores of held-out prompts, and pictures of some of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from verl_omni.samples import ScoredSamples
from verl_omni.trainer.generation import sample_generation, shown_samples
from verl_omni.trainer.generation.engines import Engines
from verl_omni.trainer.generation.sample_generator import SampleGenerator
from verl_omni.trainer.generation.shown_samples import TrainingPreview
from verl_omni.trainer.metrics import step_metrics
from verl_omni.trainer.metrics.step_recorder import StepRecorder, timed
from verl_omni.trainer.run.run_folder import ShownSample, write_samples
from verl_omni.trainer.run.step_checkpoints import is_due
from verl_omni.trainer.settings import async_settings


class Evaluation:
    """Evaluates the policy, or the average of its weights if one is kept; afterwards the engines have the policy.

    Args:
        rows: the held-out data set; None: there are no evaluations.
        last: last step of the run, which is evaluated too.
    """

    def __init__(
        self,
        config: DictConfig,
        generator: SampleGenerator,
        engines: Engines,
        recorder: StepRecorder,
        rows: Any | None,
        *,
        last: int,
    ) -> None:
        self.rows = rows
        self._config = config
        self._generator = generator
        self._engines = engines
        self._recorder = recorder
        self._last = last

    def is_due(self, step: int) -> bool:
        """Whether the weights after a step are evaluated; step 0: the initial ones."""
        if self.rows is None:
            return False
        if step == 0:
            return bool(self._config.trainer.val_before_train)
        return step == self._last or is_due(self._config.trainer.test_freq, step)

    def evaluate(self, step: int, previews: Sequence[TrainingPreview] = ()) -> dict[str, float]:
        """Evaluate the weights after a step; returns the metrics.

        Args:
            previews: training samples, shown next to samples of the same prompts that are in no metric.

        Raises:
            StaleSample: a sample has another version of the weights.
        """
        assert self.rows is not None
        metrics: dict[str, float] = {}
        rows = [self.rows[index] for index in range(len(self.rows))]
        seed = self._config.actor_rollout_ref.rollout.val_kwargs.seed
        with self._engines.serving_average(step):
            with timed(metrics, "eval"):
                samples = self._generate(rows, seed, step)
                step_metrics.check_versions(samples.versions, step)
                self._wake(step)
                compared = self._beside(previews, step) if previews else []
                self._wake(step)
            metrics |= step_metrics.evaluation(samples.scores, samples.extras)
            metrics |= step_metrics.image_statistics(samples.statistics, samples.groups, prefix="val/")
            self._recorder.observe_scores(step, samples)
            if self._show(rows, samples, compared, step):
                metrics |= step_metrics.image_diversity(samples.images)  # type: ignore[arg-type]
        return metrics

    def _wake(self, step: int) -> None:
        if not self._engines.awake:
            self._engines.publish(step)

    def _beside(self, previews: Sequence[TrainingPreview], step: int) -> list[ShownSample]:
        """The previews next to samples of these weights, some of which may have no score."""
        rows = [preview.row for preview in previews]
        seed = self._config.actor_rollout_ref.rollout.val_kwargs.seed
        samples = shown_samples.evaluation_samples(rows, self._generate(rows, seed, step, only_shown=True), seed)
        return [
            shown_samples.join_pictures(preview, sample) for preview, sample in zip(previews, samples, strict=False)
        ]

    def _generate(self, rows: list[Any], seed: int, step: int, *, only_shown: bool = False) -> ScoredSamples:
        batch = sample_generation.evaluation_requests(rows, seed=seed, version=step, only_shown=only_shown)

        def generate() -> ScoredSamples:
            return self._generator.generate(batch)

        if async_settings.batches_ahead(self._config) == 0:
            return generate()  # the requests themselves wait for replicas that join
        return self._generator.retry_with_others(generate, step)

    def _show(self, rows: list[Any], scored: ScoredSamples, compared: list[ShownSample], step: int) -> bool:
        """Write pictures, also of the previews, where the run asks for them. Returns whether there are any."""
        seed = self._config.actor_rollout_ref.rollout.val_kwargs.seed
        samples = shown_samples.evaluation_samples(rows, scored, seed)
        if not samples:
            return False
        trainer = self._config.trainer
        shown = shown_samples.choose(samples, trainer.sample_prompts)
        if 0 < len(shown) < len(samples):
            shown += shown_samples.extremes(samples)
        limit = self._recorder.pictures
        tracked = [*shown_samples.choose(samples, limit), *compared[:limit]]
        self._recorder.show(step, [*shown, *compared], tracked, trainer.video_fps)
        if trainer.validation_data_dir is not None:
            limit = trainer.validation_data_max_samples
            write_samples(Path(trainer.validation_data_dir), step, samples, limit, trainer.video_fps)
        return True
