"""`PolicyUpdate`: the optimizer steps of a training step, on all ranks."""

from collections.abc import Callable, Mapping
from typing import Any

from omegaconf import DictConfig
from verl.utils.config import omega_conf_to_dataclass

from verl_omni.samples import ScoredSamples, TrainingBatch
from verl_omni.trainer.data.preferences import PreferencePairs
from verl_omni.trainer.data.prompt_dataset import PromptOrder
from verl_omni.trainer.generation import sample_generation, verl_batches
from verl_omni.trainer.generation.training_batches import GeneratedBatch
from verl_omni.trainer.metrics import step_metrics
from verl_omni.trainer.metrics.exported import TrainerMetrics
from verl_omni.trainer.update import rank_rows
from verl_omni.trainer.update.partial_update import PartialUpdate
from verl_omni.utils.seeds import hashed_seed
from verl_omni.workers.algorithms.base import training_algorithm


class PolicyUpdate:
    """Makes the training batch of the run's algorithm, and has the ranks train on it.

    Args:
        workers: the trainer's ranks, with `update_actor(request)`.
        order: rows of the data set in each step; read with `pairs` only.
        pairs: preference pairs of the data set, where no samples are generated.
    """

    def __init__(
        self,
        config: DictConfig,
        workers: Any,
        order: PromptOrder,
        exported: TrainerMetrics,
        pairs: PreferencePairs | None = None,
    ) -> None:
        self._config = config
        self._workers = workers
        self._order = order
        self._exported = exported
        self._pairs = pairs
        self._partial: PartialUpdate | None = None
        self._loss = omega_conf_to_dataclass(config.actor_rollout_ref.actor.diffusion_loss)
        self._algorithm = training_algorithm(self._loss.loss_mode)

    def begin_parts(self, step: int, rows: int) -> Callable[[ScoredSamples], None]:
        """Begin the update of a step with samples of the engine that come in parts.

        Args:
            rows: samples of the step.

        Returns:
            Trains on the samples of a part; `train_on` trains on the last one.
        """
        self._partial = PartialUpdate(
            self._config,
            self._train_on_part,
            self._algorithm,
            self._loss,
            self._algorithm.update_arguments(self._config, step),
            rows=rows,
            seed=self._seed(step),
        )
        return self._partial.add

    def _seed(self, step: int) -> int:
        return hashed_seed("update", self._config.trainer.seed, step)

    def train_on(self, batch: GeneratedBatch) -> dict[str, float]:
        """Train on a batch; returns the metrics of the update."""
        seed = self._seed(batch.step)
        if self._pairs is not None:
            request = self._pairs.update_request(self._order.rows(batch.step), seed)
            count = 2 * len(request)
            rank_metrics = self._update(request)
        else:
            training_batch = self._training_batch(batch, seed)
            count = training_batch.samples
            rank_metrics = self._finish_parts(batch, training_batch) or self._update(
                verl_batches.update_to_verl(training_batch)
            )
        self._exported.trained(count)
        return self._algorithm.metrics(step_metrics.over_ranks(rank_metrics))

    def _update(self, request: Any) -> dict[str, list[float]]:
        """Train on all rows of a batch; returns the metrics of each rank."""
        rows_per_prompt = self._algorithm.rows_per_prompt(self._config.actor_rollout_ref.rollout.n)
        request.reorder(rank_rows.order_of_run(self._config, len(request), rows_per_prompt))
        metrics: dict[str, list[float]] = self._workers.update_actor(request).meta_info["metrics"]
        return metrics

    def _train_on_part(self, rows: TrainingBatch, part: Mapping[str, Any]) -> dict[str, list[float]]:
        request = verl_batches.update_to_verl(rows)
        request.meta_info["part"] = dict(part)
        metrics: dict[str, list[float]] = self._workers.update_part(request).meta_info["metrics"]
        return metrics

    def _finish_parts(self, batch: GeneratedBatch, rows: TrainingBatch) -> dict[str, list[float]] | None:
        """Finish an update that has begun with parts; None: none has, or it cannot be finished."""
        partial = self._partial
        self._partial = None
        if partial is None or batch.samples is None:
            return None
        return partial.finish(rows, batch.samples)

    def _training_batch(self, batch: GeneratedBatch, seed: int) -> TrainingBatch:
        assert batch.samples is not None
        samples = sample_generation.training_scores(batch.samples, self._config.reward)
        rows = self._algorithm.training_batch(samples, self._loss, self._config, seed)
        arguments = self._algorithm.update_arguments(self._config, batch.step)
        if batch.staleness:
            arguments = self._algorithm.for_older_samples(arguments)
        return TrainingBatch(rows, samples.stored, arguments)
