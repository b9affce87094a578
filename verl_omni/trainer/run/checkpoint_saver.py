"""`CheckpointSaver`: saves the checkpoints of a run, also while the training goes on."""

import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from verl_omni.trainer.run import checkpoint_origin, checkpoints
from verl_omni.trainer.run.run_folder import RunFolder

DROPPED = "CheckpointDropped"
ADAPTERS = "adapters"


class CheckpointSaver:
    """Saves checkpoints of the workers' training state into the folder of a run.

    In the background, the workers copy their state to CPU memory, and write the copy while the training goes on. The
    checkpoint becomes complete in the first `poll` or `wait` after the write has ended; until then there is none.

    Args:
        folder: folder of the run's checkpoints.
        workers: the trainer's ranks: `save_checkpoint(folder)`, or in the background `start_checkpoint(folder)` and
            `finish_checkpoint(wait_s)`, which returns for each rank whether its write has ended.
        keep: number of checkpoints of this run to keep; all if it is not positive.
        background: whether to write in the background.
        deadline_s: seconds that `wait` waits for a write.
        event: records an event of the run.
        may_write: raises where this run may no longer write into the folder.
        also: the text of files that each checkpoint has too, by their names.
        keep_adapters: number of this run's adapters to keep that were saved without a checkpoint; all if not positive.
    """

    def __init__(
        self,
        folder: Path,
        workers: Any,
        *,
        keep: int,
        background: bool,
        deadline_s: float,
        event: Callable[..., None],
        may_write: Callable[[], None],
        also: Mapping[str, str] = types.MappingProxyType({}),
        keep_adapters: int = 0,
    ) -> None:
        self.folder = folder
        self.run_number = 1
        self.newest: int | None = None  # step of the last checkpoint of this run that is complete
        self._workers = workers
        self._keep = keep
        self._background = background
        self._deadline_s = deadline_s
        self._event = event
        self._may_write = may_write
        self._also = also
        self._keep_adapters = keep_adapters
        self._writing: int | None = None  # step

    def start(self, resumed_from: Path | None) -> None:
        """Begin or continue a run; checkpoints of other runs in the folder are not counted as this run's.

        Args:
            resumed_from: checkpoint that the run starts from.
        """
        self.run_number = checkpoints.run_number(self.folder, resumed_from)
        if resumed_from is not None and resumed_from == checkpoints.latest(self.folder):
            self.newest = checkpoints.step_of(resumed_from)

    def save(self, step: int) -> None:
        """Save a checkpoint, after the one that is being written.

        Raises:
            Exception: a rank could not write this checkpoint, or the last one, which then does not exist.
        """
        self.wait()
        self._may_write()
        if not self._background:
            self._saved(step, checkpoints.save(self.folder, step, self._write, keep=self._keep, run=self.run_number))
            return
        aside = checkpoints.begin(self.folder, step)
        try:
            self._write_also(aside)
            self._workers.start_checkpoint(str(aside))
        except BaseException:
            checkpoints.abandon(self.folder, step)
            raise
        self._writing = step

    def save_adapter(self, step: int) -> None:
        """Save the adapter alone, complete or not at all, as `adapters/step_NNNNNN/lora` of the run folder.

        Raises:
            Exception: a rank could not write it; it does not exist then.
        """
        self._may_write()
        folder = self.folder.with_name(ADAPTERS)
        path = checkpoints.save(folder, step, self._write_adapter, keep=self._keep_adapters, run=self.run_number)
        self._event("adapter", step=step, path=str(path))

    def _write_adapter(self, folder: Path) -> None:
        self._workers.save_adapter(str(folder))
        self._may_write()

    def poll(self) -> None:
        """Complete the checkpoint that is being written if its write has ended.

        Raises:
            Exception: a rank could not write it.
        """
        self._finish(wait_s=0.0)

    def wait(self) -> None:
        """Wait for the checkpoint that is being written, and complete it.

        Raises:
            TimeoutError: the write took longer than `deadline_s`; the checkpoint does not exist.
            Exception: a rank could not write it.
        """
        self._finish(wait_s=self._deadline_s)
        if self._writing is not None:
            step = self._writing
            self.drop()
            raise TimeoutError(
                f"the checkpoint of step {step} was not written within {self._deadline_s:g} s: is the volume of "
                f"{self.folder} slow? Raise actor_rollout_ref.nccl_timeout, or write "
                "actor_rollout_ref.actor.checkpoint.async_save=false"
            )

    def drop(self) -> None:
        """Abort the checkpoint that is being written, because the run fails, and report a warning.

        The ranks may have failed, or wait for one that has: they are not asked.
        """
        if self._writing is None:
            return
        step = self._writing
        self._writing = None
        newest = checkpoints.latest(self.folder)
        self._event(
            "warning",
            reason=DROPPED,
            step=step,
            message=f"the checkpoint of step {step} was still being written when the run failed, and is dropped; the "
            f"newest one is {newest.name if newest is not None else 'none'}",
        )

    def _finish(self, *, wait_s: float) -> None:
        if self._writing is None:
            return
        try:
            if not all(self._workers.finish_checkpoint(wait_s)):
                return
            self._may_write()
            path = checkpoints.complete(self.folder, self._writing, keep=self._keep, run=self.run_number)
        except Exception:
            step = self._writing
            self._writing = None
            checkpoints.abandon(self.folder, step)
            raise
        step = self._writing
        self._writing = None
        self._saved(step, path)

    def _write(self, folder: Path) -> None:
        self._write_also(folder)
        self._workers.save_checkpoint(str(folder))
        self._may_write()

    def _write_also(self, folder: Path) -> None:
        for name, text in self._also.items():
            (folder / name).write_text(text, encoding="utf-8")

    def _saved(self, step: int, path: Path) -> None:
        self.newest = step
        self._event("checkpoint", step=step, path=str(path))


def saver_of_run(config: DictConfig, workers: Any, folder: RunFolder) -> CheckpointSaver:
    """The saver that the settings of a run ask for."""
    return CheckpointSaver(
        folder.path / "checkpoints",
        workers,
        keep=int(config.trainer.max_actor_ckpt_to_keep or 0),
        background=config.actor_rollout_ref.actor.checkpoint.async_save,
        deadline_s=config.actor_rollout_ref.nccl_timeout,
        event=folder.event,
        may_write=folder.check_owner,
        also=checkpoint_origin.of_run(config).files(),
        keep_adapters=int(config.trainer.max_adapters_to_keep or 0),
    )
