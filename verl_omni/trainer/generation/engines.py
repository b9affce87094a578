"""`Engines`: the rollout engines of a run, which serve a version of the weights, or sleep."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from omegaconf import DictConfig

from verl_omni.trainer.metrics import step_metrics
from verl_omni.trainer.metrics.exported import TrainerMetrics


class Engines:
    """Publishes weights to the engines, and puts them to sleep while the trainer needs their accelerators.

    Args:
        stack: `weights`, `workers` and `versions()` of a `Stack`.
    """

    def __init__(self, config: DictConfig, stack: Any, exported: TrainerMetrics) -> None:
        self.awake = True
        self._sleeps = config.actor_rollout_ref.rollout.free_cache_engine
        self._keeps_average = config.actor_rollout_ref.actor.ema_decay is not None
        self._stack = stack
        self._exported = exported

    def publish(self, version: int) -> dict[str, int]:
        """Send the weights to every engine. Returns metrics of the versions that they serve afterwards."""
        self._exported.publishing(version)
        self._stack.weights.update_weights(global_steps=version)
        self.awake = True
        return step_metrics.replica_versions(self._stack.versions(), version)

    def sleep(self) -> None:
        """Free the accelerators' memory until the next `publish`, if the run is set to do so."""
        if self._sleeps and self.awake:
            self._stack.weights.sleep_replicas()
            self.awake = False

    @contextmanager
    def serving_average(self, version: int) -> Iterator[None]:
        """Serve the moving average of the weights meanwhile, if the run keeps one."""
        if not self._keeps_average:
            yield
            return
        self._stack.workers.send_average(True)
        self.publish(version)
        yield
        self._stack.workers.send_average(False)
        self.publish(version)
