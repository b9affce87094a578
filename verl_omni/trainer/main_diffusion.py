"""`python3 -m verl_omni.trainer.main_diffusion name=value …`: train a diffusion model by reinforcement learning."""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from verl_omni.trainer import settings, startup

USAGE_ERROR, FAILURE, INTERRUPTED = 2, 1, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a training job. Returns the exit code: 0 done, 1 failed, 2 wrong settings, 130 interrupted."""
    try:
        config = settings.load(list(sys.argv[1:] if arguments is None else arguments))
    except settings.SettingsError as error:
        print(error, file=sys.stderr)
        return USAGE_ERROR
    if problem := _other_distribution():
        print(problem, file=sys.stderr)
        return USAGE_ERROR
    stop = _StopOnSignal()
    has_accelerator = startup.accelerator_present()
    startup.prepare_environment(has_accelerator)
    try:
        startup.fit_to_machine(config, has_accelerator)
    except (FileNotFoundError, ValueError) as error:
        print(error, file=sys.stderr)
        return USAGE_ERROR
    return _run(config, stop)


def _run(config: Any, stop: _StopOnSignal) -> int:
    from verl_omni.trainer import events, operator_reporter
    from verl_omni.trainer.run_folder import RunFolder

    with operator_reporter.from_environment() as reporter:

        def tell(event: Mapping[str, Any]) -> None:
            print(events.format_event(event), flush=True)
            reporter.tell(event)

        folder = RunFolder(Path(config.trainer.default_local_dir), tell)
        return _run_in(folder, config, stop, reporter)


def _run_in(folder: Any, config: Any, stop: _StopOnSignal, reporter: Any) -> int:
    from verl_omni.trainer import checkpoints

    found = checkpoints.steps(folder.path / "checkpoints") if config.trainer.resume_mode == "auto" else []
    resumed_from = found[-1] if found else None
    folder.start(config, resumed_from=resumed_from)
    cluster = stack = None
    try:
        cluster = startup.start_ray(config, lambda text: folder.event("phase", text=text))
        stop.listen()  # Ray has put a handler of its own in the place of ours for SIGTERM
        train, held_out = _prompts(config)
        stack = startup.start_actors(config, cluster, lambda text: folder.event("phase", text=text))
        _fit(config, stack, folder, train, held_out, resumed_from, stop, reporter.checkpoint_wanted)
    except Exception as error:  # reported to whoever watches, then to the exit code
        interrupted = type(error).__name__ == "Interrupted"
        message = str(error) or repr(error)
        if interrupted:
            folder.event("stopped", message=message, kind=type(error).__name__)
        else:
            folder.event("error", message=message, kind=type(error).__name__, reason=_reason(error))
            traceback.print_exc()
        return INTERRUPTED if interrupted else FAILURE
    finally:
        _report(folder)
        if stack is not None:
            stack.stop()
        elif cluster is not None:
            cluster.stop()
    folder.event("done", step=int(config.trainer.total_training_steps), report=str(folder.path / "report.html"))
    return 0


def _prompts(config: Any) -> tuple[Any, Any | None]:
    """Training and held-out prompts."""
    from verl.utils import hf_tokenizer

    from verl_omni.trainer import data

    path = config.actor_rollout_ref.model.tokenizer_path or f"{config.actor_rollout_ref.model.path}/tokenizer"
    tokenizer = hf_tokenizer(path)
    held_out = None
    if config.data.val_files:
        held_out = data.load(config.data.val_files, config.data, tokenizer, max_samples=config.data.val_max_samples)
    return data.load(config.data.train_files, config.data, tokenizer), held_out


def _fit(
    config: Any, stack: Any, folder: Any, train: Any, held_out: Any | None, resumed_from: int | None,
    stop: _StopOnSignal, checkpoint_wanted: Callable[[], bool],
) -> None:  # fmt: skip
    from omegaconf import OmegaConf

    from verl_omni.trainer.loop import DiffusionTrainer

    tracking = None
    if config.trainer.logger:
        from verl.utils.tracking import Tracking

        tracking = Tracking(
            config.trainer.project_name, config.trainer.experiment_name,
            list(config.trainer.logger), OmegaConf.to_container(config, resolve=True),
        )  # fmt: skip
    folder.event("phase", text="publishing the first weights, evaluating")
    trainer = DiffusionTrainer(
        config, stack, folder, train, held_out,
        stop_requested=lambda: stop.requested, checkpoint_wanted=checkpoint_wanted, tracking=tracking,
    )  # fmt: skip
    trainer.fit(resumed_from)


def _reason(error: BaseException) -> str:
    """The operator's word for a failure (`FailureReason` in its API). Ray's copy of an error keeps its classes."""
    names = {kind.__name__ for kind in type(error).__mro__}
    if "WeightSyncError" in names:
        return "WeightSyncFailed"
    return "OutOfMemory" if "OutOfMemoryError" in names else "ApplicationError"


def _report(folder: Any) -> None:
    """Write the report of whatever there is; a run is not failed by its picture book."""
    from verl_omni.trainer import report

    try:
        report.write(folder.path)
    except (OSError, ValueError) as error:
        folder.event("warning", message=f"no report: {error}")


def _other_distribution() -> str | None:
    """The reference implementation has the same import name; one environment must not hold both."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        found = version("verl-omni")
    except PackageNotFoundError:
        return None
    return (
        f"verl-omni {found} is installed beside omni-operator, and both are `import verl_omni`: uninstall one of them"
    )


class _StopOnSignal:
    """The first SIGINT or SIGTERM asks the loop to stop after its step; the second one ends it at once."""

    def __init__(self) -> None:
        self.requested = False
        self.listen()

    def listen(self) -> None:
        """Take the signals (again)."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: object) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True


if __name__ == "__main__":
    sys.exit(main())
