"""`TrainingBatches`: the samples of each step, generated when it begins or ahead of it."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from verl_omni.samples import ScoredSamples
from verl_omni.trainer.data.prompt_dataset import PromptOrder
from verl_omni.trainer.generation import sample_generation, shown_samples
from verl_omni.trainer.generation.generation_ahead import GenerationAhead
from verl_omni.trainer.generation.sample_generator import SampleGenerator
from verl_omni.trainer.metrics import step_metrics
from verl_omni.trainer.run.run_folder import write_samples
from verl_omni.trainer.run.step_checkpoints import is_due
from verl_omni.trainer.settings import async_settings
from verl_omni.weight_sync.errors import is_loss_of_replicas


@dataclass(frozen=True, slots=True)
class GeneratedBatch:
    """The samples that a step trains on."""

    step: int
    version: int
    """Version of the weights that generated them."""
    samples: ScoredSamples | None
    """None: the step trains on preference pairs of the data set."""
    waited_s: float | None = None
    """Seconds that the step waited for the batch; None where it was not generated ahead."""

    @property
    def staleness(self) -> int:
        """Number of versions that the trainer's weights are ahead of the samples."""
        return self.step - 1 - self.version

    def waiting(self) -> dict[str, float]:
        """Metrics of a batch that was generated ahead; empty for other batches."""
        if self.waited_s is None:
            return {}
        return {"timing_s/wait": self.waited_s, "weights/staleness": self.staleness}

    def durations(self, seconds: float) -> dict[str, float]:
        """Metrics of a step that took so many seconds."""
        durations = {"timing_s/step": seconds}
        if self.samples is not None:
            durations["timing_s/generate"] = self.samples.seconds
            durations["rollout/idle_share"] = max(0.0, 1 - self.samples.seconds / seconds)
            durations["images_per_s"] = len(self.samples.scores) / seconds
            if self.samples.scoring_seconds is not None:
                durations["timing_s/reward"] = self.samples.scoring_seconds
        return durations


class TrainingBatches:
    """Generates the batch of each step from the rows that the order gives it.

    Args:
        rows: the training data set.
        last: last step of the run.
        offline: whether the run trains on preference pairs, and generates nothing.
        is_evaluated: whether an evaluation follows a step; some of its training samples are then shown.
        parts: samples of each part of a step, if one part is trained on while the next is generated.
        update_parts: begins the update of a step with so many samples; returns what trains on each part but the last.
    """

    def __init__(
        self,
        config: DictConfig,
        generator: SampleGenerator,
        rows: Any,
        order: PromptOrder,
        *,
        last: int,
        offline: bool,
        is_evaluated: Callable[[int], bool] = lambda step: False,
        parts: Sequence[int] = (),
        update_parts: Callable[[int, int], Callable[[ScoredSamples], None]],
    ) -> None:
        self._config = config
        self._generator = generator
        self._rows = rows
        self._order = order
        self._last = last
        self._offline = offline
        self._is_evaluated = is_evaluated
        self._parts = parts
        self._update_parts = update_parts
        self._previews: dict[int, list[shown_samples.TrainingPreview]] = {}
        self._ahead: GenerationAhead[ScoredSamples] | None = None

    def start(self, step: int) -> None:
        """Begin after a step; batches are generated ahead from here on, if the run is set to do so."""
        if ahead := async_settings.batches_ahead(self._config):
            self._ahead = GenerationAhead(
                self.generate, ahead=ahead, first=step, last=self._last, is_loss=is_loss_of_replicas
            )

    def take(self, step: int) -> GeneratedBatch:
        """The batch of a step.

        Raises:
            StaleSample: a sample has another version of the weights.
        """
        if self._offline:
            return GeneratedBatch(step, step - 1, None)
        if self._ahead is None:
            return GeneratedBatch(step, step - 1, self.generate(step, step - 1))
        ahead = self._ahead

        def take() -> ScoredSamples:
            ahead.start(step - 1)
            return ahead.take(step)

        began = time.perf_counter()
        samples = self._generator.retry_with_others(take, step - 1)
        return GeneratedBatch(step, ahead.version(step), samples, time.perf_counter() - began)

    @property
    def are_ahead(self) -> bool:
        """Whether batches are generated ahead."""
        return self._ahead is not None

    def drain(self) -> None:
        """Wait for all batches that are being generated: the weights of their engines are about to change."""
        if self._ahead is not None:
            self._ahead.drain()

    def stop(self) -> None:
        """Generate no further batch."""
        if self._ahead is not None:
            self._ahead.stop()
            self._generator.before_ray_ends(self._ahead.join)

    def generate(self, step: int, version: int) -> ScoredSamples:
        """Generate the batch of a step with weights of this version, and write its samples where the run asks for it.

        Raises:
            StaleSample: a sample has another version of the weights.
        """
        trainer = self._config.trainer
        are_written = trainer.rollout_data_dir is not None and is_due(trainer.rollout_data_save_freq, step)
        rollout = self._config.actor_rollout_ref.rollout
        batch = sample_generation.training_requests(
            [self._rows[row] for row in self._order.rows(step)],
            n=rollout.n,
            step=step,
            version=version,
            seed=trainer.seed if rollout.seed is None else rollout.seed,
            # A training step needs the trajectory and the score only, and the trajectory on the ranks only.
            keeps_media=are_written,
            stores_tensors=True,
            pictures=min(shown_samples.PREVIEWS, trainer.sample_prompts) if self._is_evaluated(step) else 0,
        )
        if len(self._parts) > 1:
            take = self._update_parts(step, len(batch.requests))
            samples = self._generator.generate_parts(batch.parts(self._parts), take)
        else:
            samples = self._generator.generate(batch, ahead=self._ahead is not None)
        step_metrics.check_versions(samples.versions, version)
        if samples.pictures:
            self._previews[step] = shown_samples.training_previews(batch, samples, rollout)
        if are_written and (drawn := shown_samples.training_samples(batch, samples, rollout)):
            limit = trainer.rollout_data_max_samples
            write_samples(Path(trainer.rollout_data_dir), step, drawn, limit, trainer.video_fps)
        return samples

    def previews(self, step: int) -> list[shown_samples.TrainingPreview]:
        """Samples of a step to show next to the evaluation's, once; none where no evaluation follows it."""
        return self._previews.pop(step, [])
