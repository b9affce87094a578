"""The training loop.

    TrainingBatches.take(s) --samples--> PolicyUpdate --> Engines.publish(s) --> Evaluation --> StepCheckpoints
            ^                                                    |               (when due)      (when due)
            |                        weights of version s        |
            +----------------------------------------------------+

On accelerators, the engines sleep while the policy is updated: each arrow waits for the one before. On a CPU, prompts
of a step may be trained on while others are generated, in parts (`settings.step_parts`):

    TrainingBatches:  generate 1   generate 2    generate 3    generate 4
    PolicyUpdate:                  gradients 1   gradients 2   gradients 3   gradients 4, optimizer step

With engines on accelerators of their own, `TrainingBatches` may generate the batches of the next steps meanwhile;
`publish` then waits until they are generated, because the weights of their engines change.

Version 0 of the weights is the initial one, and step s publishes version s. So the samples of step s must have version
s - 1, or the earlier one that `GenerationAhead` says; otherwise the run stops.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_omni.agent_loop.rows import SampleFailed, SampleLost
from verl_omni.reward_loop.scorer_results import ScorerFailed
from verl_omni.trainer.data.prompt_images import ImageNotFound
from verl_omni.trainer.generation.engines import Engines
from verl_omni.trainer.generation.evaluation import Evaluation
from verl_omni.trainer.generation.training_batches import TrainingBatches
from verl_omni.trainer.metrics.step_recorder import StepRecorder, timed
from verl_omni.trainer.run.run_folder import RunFolder
from verl_omni.trainer.run.step_checkpoints import StepCheckpoints
from verl_omni.trainer.update.policy_update import PolicyUpdate
from verl_omni.weight_sync.errors import is_loss_of_replicas


@dataclass
class TrainingLoop:
    """Runs the steps from a checkpoint, or from 0, to the last one."""

    total: int
    workers: Any
    """The trainer's ranks: they load the checkpoint that the run starts from."""
    folder: RunFolder
    batches: TrainingBatches
    update: PolicyUpdate
    engines: Engines
    evaluation: Evaluation
    recorder: StepRecorder
    checkpoints: StepCheckpoints

    def fit(self, checkpoint: Path | None) -> None:
        """Train, from a checkpoint if there is one.

        Raises:
            FloatingPointError: gradients were not finite in too many optimizer steps, or in all of them.
            Interrupted: the user stopped the run; a checkpoint of the last complete step has been saved.
            TooFewReplicas: too few replicas are left; such a checkpoint has been saved too.
            SampleFailed, ScorerFailed: samples cannot be generated or scored; likewise.
            ImageNotFound: an image of a row is damaged, or has gone; likewise.
            StaleSample, StaleReplica, LogProbMismatch: samples and weights have different versions.
        """
        first = self.checkpoints.resume(checkpoint, self.workers)
        try:
            self._start(first)
            for step in range(first + 1, self.total + 1):
                self.checkpoints.stop_if_wanted()
                if self.recorder.warnings.ends_early:
                    self._end_early(step - 1)
                    break
                self._train(step)
            self.recorder.check_learning()
            self.checkpoints.save_last()
        except BaseException as error:
            try:
                self.checkpoints.abandon(save=_leaves_the_ranks(error))
            finally:
                self.batches.stop()
            raise

    def _start(self, step: int) -> None:
        self.recorder.start(step)
        served = self.engines.publish(step)
        if self.evaluation.is_due(step) and not self.folder.has_evaluation(step):
            # A run that ended while it waited for replicas has recorded the metrics of the step.
            recorded = self.folder.line(step)
            metrics = recorded | {"step": step, "weights/version": step, **served}
            self.recorder.record(metrics | self.evaluation.evaluate(step))
        self.batches.start(step)

    def _end_early(self, step: int) -> None:
        self.batches.stop()
        text = f"ending after step {step} of {self.total}: the reward is exploited (reward.early_stopping_patience)"
        self.folder.event("phase", text=text)

    def _train(self, step: int) -> None:
        began = time.perf_counter()
        metrics: dict[str, Any] = {"step": step, "weights/version": step}
        batch = self.batches.take(step)
        self.engines.sleep()
        if batch.samples is not None:
            metrics |= batch.waiting()
            metrics |= self.recorder.observe_samples(step, batch.samples)
        with timed(metrics, "update"):
            metrics |= self.update.train_on(batch)
        self.checkpoints.last_complete_step = step
        self.recorder.updated(metrics)
        if self.batches.are_ahead:
            with timed(metrics, "wait"):
                self.batches.drain()
        with timed(metrics, "sync"):
            metrics |= self.engines.publish(step)
        metrics |= batch.durations(time.perf_counter() - began)
        if self.evaluation.is_due(step):
            metrics |= self.evaluation.evaluate(step, self.batches.previews(step))
        self.recorder.finished(metrics)
        self.checkpoints.after_step(step)


def _leaves_the_ranks(error: BaseException) -> bool:
    """Whether the ranks are as after the last complete step, and answer: replicas, samples or rows failed."""
    if isinstance(error, SampleLost):
        return False
    return isinstance(error, (SampleFailed, ScorerFailed, ImageNotFound)) or is_loss_of_replicas(error)
