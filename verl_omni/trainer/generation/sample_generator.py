"""`SampleGenerator`: scored samples of a batch, also while replicas are lost and join."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from omegaconf import DictConfig

from verl_omni.samples import SampleRequests, ScoredSamples
from verl_omni.trainer.generation.engines import Engines
from verl_omni.trainer.generation.sample_generation import generate_parts, generate_scored
from verl_omni.trainer.run.run_folder import RunFolder
from verl_omni.trainer.settings import scorer_devices
from verl_omni.weight_sync.errors import is_loss_of_replicas

T = TypeVar("T")
# A batch, or an evaluation, survives the loss of all replicas three times. After more, the batch is the likely cause.
LOSSES_OF_ALL_REPLICAS = 3
POLL_SECONDS = 1.0
JOIN_SECONDS = 30.0


class SampleGenerator:
    """Has the agent loops generate and score batches.

    Args:
        stack: `agent_loop`, `rewards`, `pool` and `before_ray_ends` of a `Stack`.
        poll_requests: called while all replicas are lost: it may stop the run, or save for the operator.
    """

    def __init__(
        self,
        config: DictConfig,
        stack: Any,
        engines: Engines,
        folder: RunFolder,
        poll_requests: Callable[[], None],
    ) -> None:
        self._config = config
        self._stack = stack
        self._engines = engines
        self._folder = folder
        self._poll_requests = poll_requests

    def generate(self, batch: SampleRequests, *, ahead: bool = False) -> ScoredSamples:
        """Generate and score a batch with the weights of its version, which replicas that join meanwhile get too.

        Args:
            ahead: use the weights that the engines serve, whatever the trainer does meanwhile.
        """
        score = self._score_all if scorer_devices.scores_late(self._config) else None
        call = partial(generate_scored, self._config, self._stack.agent_loop, batch, score)
        if ahead or self._stack.pool is None:
            return call()
        assert batch.version is not None
        updates = self._stack.pool.updates
        with updates.generating(batch.version):
            return watched(call, lambda: updates.while_lost(self._poll_requests), self.before_ray_ends)

    def generate_parts(self, parts: Sequence[SampleRequests], take: Callable[[ScoredSamples], None]) -> ScoredSamples:
        """As `generate`, in parts; `take` gets each part but the last, while the next ones are generated."""
        return generate_parts(self._config, self._stack.agent_loop, parts, take)

    def retry_with_others(self, generate: Callable[[], T], version: int) -> T:
        """Retry `generate` after the loss of all replicas, when new ones have joined and received weights `version`.

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
            self._folder.event("phase", text="all rollout replicas are lost: waiting for others")
            self._engines.publish(version)

    def before_ray_ends(self, join: Callable[[], None]) -> None:
        """Have `join` wait for a thread that calls Ray: it must not outlive Ray."""
        self._stack.before_ray_ends.append(join)

    def _score_all(self, samples: Any) -> Any:
        """Score a generated batch; the engines sleep if the judge, or a scorer, is on their accelerators."""
        if scorer_devices.needs_engines_asleep(self._config):
            self._engines.sleep()
        return self._stack.rewards.compute_rm_score(samples)


def watched(call: Callable[[], T], poll: Callable[[], None], at_the_end: Callable[[Callable[[], None]], None]) -> T:
    """The result of `call`; `poll` is called every `POLL_SECONDS` until then, and its error is raised at once.

    Args:
        call: runs in a thread, and is left alone if `poll` raises.
        at_the_end: gets what waits for such a thread. A thread that is in a call of Ray must not outlive Ray.

    Raises:
        BaseException: of `call`, or of `poll`.
    """
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(call())
        except BaseException as error:  # noqa: BLE001  raised again below
            result.set_exception(error)

    # Not of an executor, which the interpreter joins at its exit.
    thread = threading.Thread(target=run, name="watched-call", daemon=True)
    thread.start()
    try:
        while True:
            try:
                return result.result(POLL_SECONDS)
            except TimeoutError:
                if result.done():
                    return result.result()  # the call's own, or it has ended in this moment
            poll()
    finally:
        if not result.done():
            at_the_end(lambda: thread.join(JOIN_SECONDS))
