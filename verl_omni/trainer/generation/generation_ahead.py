"""Generation of the next batches while the trainer updates, on a schedule that does not depend on timing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Generic, TypeVar

from omegaconf import DictConfig

from verl_omni.workers.algorithms.registry import ALGORITHMS

V1, ROLLOUT = "trainer.v1", "actor_rollout_ref.rollout"
ASYNC, DROP = "separate_async", "drop"
BYPASS = "algorithm.rollout_correction.bypass_mode"
JOIN_SECONDS = 30.0
UNUSED = {"num_warmup_batches": 1, "parameter_sync_step": None, "sync_compatible": False}  # the defaults
Batch = TypeVar("Batch")


def find_problems(config: DictConfig) -> Iterator[str]:
    """What is not supported of `trainer.use_v1` and `trainer.v1`, a line for each setting. PURE."""
    v1 = config.trainer.v1
    if v1.trainer_mode == ASYNC:
        yield from _asynchronous(config)
    elif v1.trainer_mode == "sync":
        for name, default in UNUSED.items():
            if v1.separate_async[name] != default:
                yield f"{V1}.separate_async.{name}: is not read with {V1}.trainer_mode=sync; remove it"
    ahead, threshold = v1.separate_async.num_warmup_batches, v1.sampler.max_off_policy_threshold
    if not _is_int(ahead) or ahead < 0:
        yield f"{V1}.separate_async.num_warmup_batches: must be a whole number of batches, from 0: {ahead}"
    elif threshold is not None and (not _is_int(threshold) or threshold < 1):
        yield f"{V1}.sampler.max_off_policy_threshold: must be at least 1, or null: {threshold}"
    elif threshold is not None and ahead >= threshold and v1.sampler.max_off_policy_strategy != DROP:
        yield (
            f"{V1}.sampler.max_off_policy_threshold: samples generated {ahead} batches ahead span {ahead + 1} "
            f"versions, more than {threshold}; raise it, lower {V1}.separate_async.num_warmup_batches, or write "
            f"{V1}.sampler.max_off_policy_strategy={DROP}"
        )


def _asynchronous(config: DictConfig) -> Iterator[str]:
    if not config.trainer.use_v1:
        yield f"{V1}.trainer_mode: is not read with trainer.use_v1=false; write trainer.use_v1=true"
    if config.algorithm.sample_source != "online":
        yield f"{V1}.trainer_mode: nothing is generated with algorithm.sample_source=offline; write sync"
    elif config.actor_rollout_ref.rollout.nnodes == 0:
        yield (
            f"{V1}.trainer_mode: separate_async needs replicas on accelerators of their own; "
            f"write {ROLLOUT}.nnodes=1, or sync"
        )
    step = config.trainer.v1.separate_async.parameter_sync_step
    rows, mini = config.data.train_batch_size, config.actor_rollout_ref.actor.ppo_mini_batch_size
    if step is not None and step * mini != rows:
        yield (
            f"{V1}.separate_async.parameter_sync_step: the weights are sent after each training step, which has "
            f"data.train_batch_size={rows} / actor_rollout_ref.actor.ppo_mini_batch_size={mini} optimizer steps, not "
            f"{step}; remove it, or change one of these"
        )


def batches_ahead(config: DictConfig) -> int:
    """How many batches are generated ahead of the step that trains on them; 0: none. PURE.

    With `max_off_policy_strategy=drop`, no more than `max_off_policy_threshold` allows. The schedule says beforehand
    which samples would be too old, so they are generated with newer weights instead of being dropped afterwards.
    """
    v1 = config.trainer.v1
    if v1.trainer_mode != ASYNC or v1.separate_async.sync_compatible:
        return 0
    ahead, threshold = int(v1.separate_async.num_warmup_batches), v1.sampler.max_off_policy_threshold
    if v1.sampler.max_off_policy_strategy == DROP and threshold is not None:
        return min(ahead, int(threshold) - 1)
    return ahead


def unlimited_text(config: DictConfig) -> str | None:
    """What a run should set if nothing limits how far its policy moves from older samples; else None. PURE.

    With one optimizer step per training step the ratio to the trainer's policy before the update is 1, so `clip_ratio`
    does nothing. Algorithms whose loss has no such ratio, or that cannot have the engine's, have nothing to set.
    """
    ahead, correction = batches_ahead(config), config.algorithm.rollout_correction
    loss = ALGORITHMS[config.actor_rollout_ref.actor.diffusion_loss.loss_mode]
    if not ahead or correction.bypass_mode or correction.rollout_rs is not None or not loss.on_recorded_steps:
        return None
    if any(each.name == BYPASS for each in loss.required):
        return None
    versions = "1 version" if ahead == 1 else f"{ahead} versions"
    return (
        f"samples are up to {versions} of the weights old, and nothing limits how far the policy moves from the one "
        f"that generated them, so the reward may fall. Write {BYPASS}=true, and a clip_ratio of about 2.5 times "
        "rollout_corr/mean_abs_diff of the first steps (docs/pools.md)"
    )


class GenerationAhead(Generic[Batch]):
    """Generates the batch of each step `ahead` steps before the trainer needs it, in a thread, one after another.

    The batch of step s has the weights after step s - 1 - `ahead`: each sample comes from one version, the age of every
    sample is known, and the same run has the same samples on a slow machine and on a fast one. The weights may change
    only between `drain` and `start`.

    Args:
        generate: makes the batch of a step with the weights of a version; called in the thread.
        first: step of the checkpoint that the run starts from, whose weights are the oldest there are.
        last: last step of the run.
        is_loss: whether an error of `generate` is the loss of all replicas.
    """

    def __init__(
        self, generate: Callable[[int, int], Batch], *, ahead: int, first: int, last: int,
        is_loss: Callable[[BaseException], bool] = lambda error: False,
    ) -> None:  # fmt: skip
        self._generate, self._ahead, self._first, self._last = generate, ahead, first, last
        self._is_loss = is_loss
        self._again: dict[int, int] = {}  # step of a batch that was lost -> the version that generates it instead
        self._started = first
        self._batches: dict[int, Future[Batch]] = {}
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None  # the last; `drain` has awaited the batches of those before

    def version(self, step: int) -> int:
        """Version of the weights that generate the batch of a step."""
        return self._again.get(step, max(self._first, step - 1 - self._ahead))

    def start(self, version: int) -> None:
        """Start to generate the batches of the published version, and those that were lost.

        Those of earlier versions must have been drained.
        """
        made: dict[int, Future[Batch]] = {}
        for step, batch in self._batches.items():
            if batch.done() and (error := batch.exception()) is not None and self._is_loss(error):
                self._again[step], made[step] = version, Future()
        while self._started < self._last and self.version(self._started + 1) <= version:
            self._started += 1
            made[self._started] = Future()
        self._batches |= made
        if made:
            # Not of an executor, which the interpreter joins at its exit, also after the engines are gone.
            self._thread = threading.Thread(target=self._run, args=(made,), name="generation", daemon=True)
            self._thread.start()

    def take(self, step: int) -> Batch:
        """The batch of a step; waits for it.

        Raises:
            Exception: what `generate` raised for this batch, or for an earlier one. After the loss of all replicas, the
                batch may be taken again once weights are published and `start` was called.
        """
        made = self._batches[step].result()
        del self._batches[step]
        return made

    def drain(self) -> None:
        """Wait for all batches that were started.

        Raises:
            Exception: what `generate` raised, other than the loss of all replicas.
        """
        for batch in list(self._batches.values()):
            if (error := batch.exception()) is not None and not self._is_loss(error):
                raise error

    def stop(self) -> None:
        """Generate no further batch; the one that is being generated is left to the end of its engine."""
        self._stopping.set()

    def join(self) -> None:
        """Wait until no batch is generated any more: a thread that is in a call of Ray must not outlive Ray."""
        if self._thread is not None:
            self._thread.join(JOIN_SECONDS)

    def _run(self, batches: dict[int, Future[Batch]]) -> None:
        failure: BaseException | None = None
        for step, batch in batches.items():
            if failure is None and not self._stopping.is_set():
                try:
                    batch.set_result(self._generate(step, self.version(step)))
                    continue
                except BaseException as error:  # noqa: BLE001  raised again where the batch is taken
                    failure = error
            batch.set_exception(failure or RuntimeError("the run has ended"))


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
