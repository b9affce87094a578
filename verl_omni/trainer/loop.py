"""Training loop: generate, score, update, publish; evaluate and save at intervals.

The batches of the next steps may be generated while the trainer updates (`generation_ahead`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from omegaconf import DictConfig
from verl import DataProto
from verl.utils.config import omega_conf_to_dataclass

from verl_omni.trainer.data import prompt_dataset
from verl_omni.trainer.data.preferences import PreferencePairs
from verl_omni.trainer.generation import generation_ahead, rank_rows, sample_generation, shown_samples
from verl_omni.trainer.metrics import step_metrics
from verl_omni.trainer.metrics.exported import TrainerMetrics
from verl_omni.trainer.metrics.run_warnings import RunWarnings
from verl_omni.trainer.replicas.replica_reports import JudgeReports, RunReports
from verl_omni.trainer.run import checkpoint_origin, checkpoints
from verl_omni.trainer.run.checkpoint_saver import CheckpointSaver
from verl_omni.trainer.run.run_folder import RunFolder, write_samples
from verl_omni.trainer.run.trackers import Trackers
from verl_omni.trainer.run.watched_call import watched
from verl_omni.trainer.settings import async_settings, scorer_devices
from verl_omni.utils.metrics.metrics_writer import MetricsWriter
from verl_omni.utils.seeds import hashed_seed
from verl_omni.weight_sync.errors import is_loss_of_replicas
from verl_omni.workers.algorithms.base import training_algorithm

T = TypeVar("T")
LOSSES_OF_ALL_REPLICAS = 3  # that a batch, or an evaluation, survives; after more, others would meet what is wrong too


class Interrupted(Exception):
    """The user stopped the run; a checkpoint has been saved."""


class DiffusionTrainer:
    """Runs the steps from a checkpoint, or from 0, to `trainer.total_training_steps`.

    Version 0 of the weights is the initial one, and step s publishes version s. So the samples of step s must have
    version s - 1, or the earlier one that `GenerationAhead` says; otherwise the run stops.
    """

    def __init__(
        self,
        config: DictConfig,
        stack: Any,
        folder: RunFolder,
        train: Any,
        held_out: Any | None,
        *,
        stop_requested: Callable[[], bool],
        checkpoint_wanted: Callable[[], bool] = lambda: False,
        saved_for_others: Callable[[], None] = lambda: None,
        note: Callable[[str, int | Mapping[str, int]], None] = lambda name, value: None,
        tracking: Trackers | None = None,
        pairs: PreferencePairs | None = None,
    ) -> None:
        self.config, self.stack, self.folder = config, stack, folder
        self.train, self.held_out, self.pairs = train, held_out, pairs
        self.stop_requested, self.tracking = stop_requested, tracking
        self.checkpoint_wanted, self.saved_for_others = checkpoint_wanted, saved_for_others
        self.checkpoints = folder.path / "checkpoints"
        self.saver = CheckpointSaver(
            self.checkpoints, stack.workers, event=folder.event, may_write=folder.check_owner,
            keep=int(config.trainer.max_actor_ckpt_to_keep or 0),
            background=config.actor_rollout_ref.actor.checkpoint.async_save,
            deadline_s=config.actor_rollout_ref.nccl_timeout, also=checkpoint_origin.of_run(config).files(),
        )  # fmt: skip
        self.loss = omega_conf_to_dataclass(config.actor_rollout_ref.actor.diffusion_loss)
        self.algorithm = training_algorithm(self.loss.loss_mode)
        rows = config.data
        self.order = prompt_dataset.PromptOrder(len(train), rows.train_batch_size, rows.seed, shuffle=rows.shuffle)
        self.total = int(config.trainer.total_training_steps)
        self._seconds: list[float] = []
        self._awake, self._complete = True, 0  # the engines; the last step whose update is complete
        self._unrecorded: dict[str, Any] | None = None  # its metrics, until its weights are published and evaluated
        self._optimizer_steps = 0.0  # taken since this process started
        self._drawn = 0  # training samples since then
        self._unscored = 0  # those of them without a reward
        self._warnings = RunWarnings(folder)
        self.exported = TrainerMetrics()
        self._ahead: generation_ahead.GenerationAhead[sample_generation.ScoredSamples] | None = None
        if stack.pool is not None:
            stack.pool.updates.reports = RunReports(folder, MetricsWriter(), note)
            stack.pool.updates.waited = self._poll_requests
            stack.pool.start()
        if stack.judges is not None:
            stack.judges.updates.reports = JudgeReports(folder, MetricsWriter(), note)
            stack.judges.start()

    def fit(self, checkpoint: Path | None) -> None:
        """Train, from a checkpoint if there is one.

        Raises:
            FloatingPointError: gradients were not finite in too many optimizer steps, or in all of them.
            Interrupted: `stop_requested` returned true; a checkpoint of the last complete step has been saved.
            TooFewReplicas: too few replicas are left; such a checkpoint has been saved too.
            StaleSample, StaleReplica, LogProbMismatch: samples and weights have different versions.
        """
        step = 0
        self.saver.start(checkpoint)
        if checkpoint is not None:
            step = checkpoints.step_of(checkpoint)
            self.stack.workers.load_checkpoint(str(checkpoint))
        self._complete = step
        try:
            self._train_from(step)
        except BaseException as error:
            try:
                if is_loss_of_replicas(error) and self._complete != 0:
                    self._save_unless_saved()
            finally:
                self.saver.drop()
                if self._ahead is not None:
                    self._ahead.stop()
                    self.stack.before_ray_ends.append(self._ahead.join)
            raise

    def _train_from(self, step: int) -> None:
        self._warnings.restore()
        self.exported.started(step, self.total)
        served = self._publish(step)
        if self._evaluates(step) and not self.folder.has_evaluation(step):
            # A run that ended while it waited for replicas has recorded the metrics of the step.
            line = self.folder.line(step) | {"step": step, "weights/version": step, **served}
            self._record(line | self._evaluate(step))
        if ahead := async_settings.batches_ahead(self.config):
            self._ahead = generation_ahead.GenerationAhead(
                self._generate, ahead=ahead, first=step, last=self.total, is_loss=is_loss_of_replicas
            )
        while step < self.total:
            if self.stop_requested():
                self._stop()
            step += 1
            self._step(step)
        if self._seconds and not self._optimizer_steps:
            raise FloatingPointError("no optimizer step of this run was taken: none of its gradients was finite")
        self._save_unless_saved()

    def _step(self, step: int) -> None:
        began = time.perf_counter()
        line: dict[str, Any] = {"step": step, "weights/version": step}
        samples, version = self._samples(step, line)
        self._sleep_engines()
        if samples is not None:
            self._drawn += len(samples.scores)
            self.exported.generated(len(samples.scores))
            line |= step_metrics.rewards(samples.scores, samples.extras)
            self._unscored += int(samples.scores.isnan().sum())
            self._warnings.observe_scores(step, samples.failures, samples.extras)
            line |= step_metrics.reward_spread(samples.scores, samples.groups)
        with _timed(line, "update"):
            line |= self._update(samples, step, fresh=version == step - 1)
        self._complete, self._unrecorded = step, line
        self._optimizer_steps += line["actor/optimizer_steps"]
        if self._ahead is not None:
            with _timed(line, "wait"):
                self._ahead.drain()  # before the weights of their engines change
        with _timed(line, "sync"):
            line |= self._publish(step)
        line["timing_s/step"] = time.perf_counter() - began
        if samples is not None:
            line["timing_s/generate"] = samples.seconds
            line["images_per_s"] = len(samples.scores) / line["timing_s/step"]
            if samples.scoring_seconds is not None:
                line["timing_s/reward"] = samples.scoring_seconds
        self._seconds.append(line["timing_s/step"])
        if self._evaluates(step):
            line |= self._evaluate(step)
        self._record(line, step_metrics.eta(self._seconds, self.total - step))
        self._unrecorded = None
        self.saver.poll()
        if not self._save_if_wanted() and self._due(self.config.trainer.save_freq, step):
            self.saver.save(step)

    def _samples(self, step: int, line: dict[str, Any]) -> tuple[sample_generation.ScoredSamples | None, int]:
        """The samples of a step, and the version of the weights that generated them."""
        if self.pairs is not None:
            return None, step - 1
        if self._ahead is None:
            return self._generate(step, step - 1), step - 1
        with _timed(line, "wait"):
            samples = self._take(self._ahead, step)
        version = self._ahead.version(step)
        line["weights/staleness"] = step - 1 - version
        return samples, version

    def _take(self, ahead: generation_ahead.GenerationAhead[Any], step: int) -> sample_generation.ScoredSamples:
        """The batch of a step; if all replicas are lost, others generate it with the current weights."""

        def take() -> sample_generation.ScoredSamples:
            ahead.start(step - 1)
            found: sample_generation.ScoredSamples = ahead.take(step)
            return found

        return self._with_others(take, step - 1)

    def _with_others(self, generate: Callable[[], T], version: int) -> T:
        """Repeat what all replicas were lost in, once others have the weights, which are those of this version.

        For the asynchronous mode, in which requests do not wait for a replica that joins.

        Raises:
            TooFewReplicas: no others joined in time.
            Exception: what `generate` raised, also the loss of all replicas after `LOSSES_OF_ALL_REPLICAS` others.
        """
        losses = 0
        while True:
            try:
                return generate()
            except Exception as error:
                losses += 1
                if losses > LOSSES_OF_ALL_REPLICAS or not is_loss_of_replicas(error):
                    raise
            self.folder.event("phase", text="all rollout replicas are lost: waiting for others")
            self._publish(version)

    def _generate(self, step: int, version: int) -> sample_generation.ScoredSamples:
        trainer, rollout = self.config.trainer, self.config.actor_rollout_ref.rollout
        prompts = sample_generation.training_prompts(
            [self.train[row] for row in self.order.rows(step)], n=rollout.n, step=step, version=version,
            seed=trainer.seed if rollout.seed is None else rollout.seed,
        )  # fmt: skip
        saved = trainer.rollout_data_dir is not None and self._due(trainer.rollout_data_save_freq, step)
        # A training step needs the trajectory and the score only, and the trajectory on the ranks only.
        score = self._score_all if scorer_devices.scores_late(self.config) else None
        prompts.meta_info |= {"carry_responses": saved, "store_samples": True}
        if self._ahead is None:
            samples = self._generate_scored(prompts, score, version)
        else:
            samples = sample_generation.generate_scored(self.config, self.stack.agent_loop, prompts, score)
        step_metrics.check_versions(samples.versions, version)
        if saved and (drawn := shown_samples.training_samples(prompts, samples, rollout)):
            folder, limit = Path(trainer.rollout_data_dir), trainer.rollout_data_max_samples
            write_samples(folder, step, drawn, limit, trainer.video_fps)
        return samples

    def _generate_scored(
        self, prompts: DataProto, score: Callable[[DataProto], DataProto] | None, version: int
    ) -> sample_generation.ScoredSamples:
        """Generate a batch with the weights of this version, which replicas that join meanwhile get too.

        While all replicas are lost, the run may be stopped, or save for the operator.
        """

        def call() -> sample_generation.ScoredSamples:
            return sample_generation.generate_scored(self.config, self.stack.agent_loop, prompts, score)

        if self.stack.pool is None:
            return call()
        updates = self.stack.pool.updates
        with updates.generating(version):
            return watched(call, lambda: updates.while_lost(self._poll_requests), self.stack.before_ray_ends.append)

    def _score_all(self, samples: DataProto) -> DataProto:
        """Have the judge, or scorers, on the trainer's accelerators score a batch, while the engines sleep."""
        self._sleep_engines()
        found: DataProto = self.stack.rewards.compute_rm_score(samples)
        return found

    def _sleep_engines(self) -> None:
        if self.config.actor_rollout_ref.rollout.free_cache_engine and self._awake:
            self.stack.weights.sleep_replicas()
            self._awake = False

    def _update(self, samples: sample_generation.ScoredSamples | None, step: int, *, fresh: bool) -> dict[str, float]:
        seed = hashed_seed("update", self.config.trainer.seed, step)
        if samples is None:
            request = self.pairs.update_request(self.order.rows(step), seed)  # type: ignore[union-attr]
            count = 2 * len(request)
        else:
            samples = sample_generation.training_scores(samples, self.config.reward)
            batch = self.algorithm.training_batch(samples, self.loss, self.config, seed)
            arguments = self.algorithm.update_arguments(self.config, step)
            if not fresh:
                arguments = self.algorithm.for_older_samples(arguments)
            request = sample_generation.update_request(batch, samples.stored, arguments)
            count = sample_generation.samples_in(batch)
        per_prompt = self.algorithm.rows_per_prompt(self.config.actor_rollout_ref.rollout.n)
        request.reorder(rank_rows.order_of_run(self.config, len(request), per_prompt))
        found = self.stack.workers.update_actor(request).meta_info["metrics"]
        self.exported.trained(count)
        return self.algorithm.metrics(step_metrics.over_ranks(found))

    def _publish(self, step: int) -> dict[str, int]:
        """Send the weights to every engine. Returns metrics of the versions that they serve afterwards."""
        self.exported.publishing(step)
        self.stack.weights.update_weights(global_steps=step)
        self._awake = True
        return step_metrics.replica_versions(self.stack.versions(), step)

    def _evaluate(self, step: int) -> dict[str, float]:
        """Evaluate the policy, or the average of its weights if one is kept; afterwards the engines have the policy."""
        if self.config.actor_rollout_ref.actor.ema_decay is None:
            return self._evaluate_served(step)
        self.stack.workers.send_average(True)
        self._publish(step)
        found = self._evaluate_served(step)
        self.stack.workers.send_average(False)
        self._publish(step)
        return found

    def _evaluate_served(self, step: int) -> dict[str, float]:
        line: dict[str, float] = {}
        with _timed(line, "eval"):
            rows = [self.held_out[place] for place in range(len(self.held_out))]  # type: ignore[index,arg-type]
            seed = self.config.actor_rollout_ref.rollout.val_kwargs.seed
            prompts = sample_generation.evaluation_prompts(rows, seed=seed, version=step)
            score = self._score_all if scorer_devices.scores_late(self.config) else None

            def generate() -> sample_generation.ScoredSamples:
                return self._generate_scored(prompts, score, step)

            waits = async_settings.batches_ahead(self.config) == 0  # the requests themselves do, for others to join
            found = generate() if waits else self._with_others(generate, step)
            step_metrics.check_versions(found.versions, step)
            if not self._awake:
                self._publish(step)
        line |= step_metrics.evaluation(found.scores, found.extras)
        self._warnings.observe_scores(step, found.failures, found.extras)
        if not (samples := shown_samples.evaluation_samples(rows, found, seed)):
            return line
        trainer = self.config.trainer
        self.folder.samples(step, shown_samples.choose(samples, trainer.sample_prompts), trainer.video_fps)
        if trainer.validation_data_dir is not None:
            folder, limit = Path(trainer.validation_data_dir), trainer.validation_data_max_samples
            write_samples(folder, step, samples, limit, trainer.video_fps)
        if self.tracking is not None:
            self.tracking.show(step, shown_samples.choose(samples, self.tracking.pictures))
        return line | step_metrics.image_diversity(found.images)

    def _record(self, line: dict[str, Any], eta_s: float | None = None) -> None:
        new = self.folder.step(line, eta_s, samples=self._drawn, unscored=self._unscored)  # each number counts once
        if self.tracking is not None:
            self.tracking.log(data=new, step=line["step"])
        self._warnings.observe(line["step"], new)
        self.exported.step(new, collapsed=self._warnings.collapsed)

    def _poll_requests(self) -> None:
        """While the run waits for replicas: stop, or save, as between two steps."""
        if self.stop_requested():
            self._stop()
        self._save_if_wanted()

    def _save_if_wanted(self) -> bool:
        """Save if the operator or a pod that ends waits for it. Returns whether one does."""
        if wanted := self.checkpoint_wanted():
            self._save_complete()
            self.saved_for_others()
        return wanted

    def _stop(self) -> NoReturn:
        self._save_unless_saved()
        raise Interrupted(f"stopped after step {self._complete} of {self.total}")

    def _save_unless_saved(self) -> None:
        """Save the last complete step, unless its checkpoint is there, or is being written."""
        self.saver.wait()
        if self.saver.newest != self._complete:
            self._save_complete()

    def _save_complete(self) -> None:
        """Record and save the last complete step, so that a resumed run continues after it."""
        if self._unrecorded is not None:
            self._record(self._unrecorded)
            self._unrecorded = None
        self._save_and_wait(self._complete)

    def _save_and_wait(self, step: int) -> None:
        self.saver.save(step)
        self.saver.wait()

    def _evaluates(self, step: int) -> bool:
        if self.held_out is None:
            return False
        if step == 0:
            return bool(self.config.trainer.val_before_train)
        return step == self.total or self._due(self.config.trainer.test_freq, step)

    @staticmethod
    def _due(every: int, step: int) -> bool:
        return every > 0 and step % every == 0


@contextmanager
def _timed(line: dict[str, Any], name: str) -> Iterator[None]:
    """Add the seconds of a block to the metrics, as `timing_s/<name>`."""
    began = time.perf_counter()
    yield
    line[f"timing_s/{name}"] = line.get(f"timing_s/{name}", 0.0) + time.perf_counter() - began
