"""`StepCheckpoints`: when a run saves, and how it stops."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from verl_omni.trainer.run import checkpoints
from verl_omni.trainer.run.checkpoint_saver import CheckpointSaver


class Interrupted(Exception):
    """The user stopped the run; a checkpoint has been saved."""


@dataclass
class RunRequests:
    """Requests to a run from outside; each is read between two steps, and while the run waits for replicas."""

    stop_wanted: Callable[[], bool]
    """Whether the user wants the run to stop."""
    checkpoint_wanted: Callable[[], bool] = lambda: False
    """Whether the operator, or a pod that ends, waits for a checkpoint."""
    saved: Callable[[], None] = lambda: None
    """Called when such a checkpoint exists."""


def is_due(every: int, step: int) -> bool:
    """Whether something is due after a step that happens every `every` steps; not positive: never."""
    return every > 0 and step % every == 0


class StepCheckpoints:
    """Saves the last complete step when it is due, requested, or the run ends.

    Args:
        every: steps between two checkpoints (`trainer.save_freq`); not positive: only the last step is saved.
        adapter_every: steps between two adapters that are saved alone; not positive: none is.
        total: steps of the run.
        before_save: records what is known of the last complete step, so that a resumed run continues after it.
    """

    def __init__(
        self,
        saver: CheckpointSaver,
        requests: RunRequests,
        *,
        every: int,
        adapter_every: int,
        total: int,
        before_save: Callable[[], None],
    ) -> None:
        self.saver = saver
        self.requests = requests
        self.last_complete_step = 0
        self._every = every
        self._adapter_every = adapter_every
        self._total = total
        self._before_save = before_save

    def resume(self, checkpoint: Path | None, workers: Any) -> int:
        """Load a checkpoint, if there is one; returns its step."""
        self.saver.start(checkpoint)
        if checkpoint is not None:
            self.last_complete_step = checkpoints.step_of(checkpoint)
            workers.load_checkpoint(str(checkpoint))
        return self.last_complete_step

    def stop_if_wanted(self) -> None:
        """Save and stop, if the user wants it.

        Raises:
            Interrupted: a checkpoint of the last complete step has been saved.
        """
        if self.requests.stop_wanted():
            self._stop()

    def poll_requests(self) -> None:
        """Stop, or save, as between two steps.

        Raises:
            Interrupted: see `stop_if_wanted`.
        """
        self.stop_if_wanted()
        self._save_if_wanted()

    def after_step(self, step: int) -> None:
        """Save a step that is recorded, if it is due or requested."""
        self.saver.poll()
        if is_due(self._adapter_every, step):
            self.saver.save_adapter(step)
        if not self._save_if_wanted() and is_due(self._every, step):
            self.saver.save(step)

    def save_last(self) -> None:
        """Save the last complete step, unless its checkpoint is there, or is being written."""
        self.saver.wait()
        if self.saver.newest != self.last_complete_step:
            self._save_complete()

    def abandon(self, *, save: bool) -> None:
        """The run fails: save its last complete step if its ranks still answer, and drop what is being written."""
        try:
            if save and self.last_complete_step != 0:
                self.save_last()
        finally:
            self.saver.drop()

    def _save_if_wanted(self) -> bool:
        if not self.requests.checkpoint_wanted():
            return False
        self._save_complete()
        self.requests.saved()
        return True

    def _stop(self) -> NoReturn:
        self.save_last()
        raise Interrupted(f"stopped after step {self.last_complete_step} of {self._total}")

    def _save_complete(self) -> None:
        self._before_save()
        self.saver.save(self.last_complete_step)
        self.saver.wait()
