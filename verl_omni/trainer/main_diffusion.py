"""Entry point of the trainer: `python3 -m verl_omni.trainer.main_diffusion name=value ...`."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verl_omni.trainer import startup
from verl_omni.trainer.run.event_text import format_event
from verl_omni.trainer.run.stop_signal import StopOnSignal, describe_loss
from verl_omni.trainer.settings import configuration
from verl_omni.trainer.settings.extension_settings import ExtensionFailed
from verl_omni.trainer.stack import Cluster, Stack

if TYPE_CHECKING:
    from verl_omni.trainer.data.preferences import PreferencePairs
    from verl_omni.trainer.loop import TrainingLoop
    from verl_omni.trainer.run.run_folder import RunFolder
    from verl_omni.trainer.run.step_checkpoints import RunRequests
    from verl_omni.trainer.run.trackers import Trackers

OK = 0
FAILURE = 1
USAGE_ERROR = 2
INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Run:
    """A training run.

    Attributes:
        folder: its `RunFolder`. checkpoint: folder of the checkpoint that it starts from, if any.
        checkpoint_wanted: whether the operator has requested a checkpoint since the last call, or a pod that stops one.
        saves: the requests of those pods.
        note: gives the operator a number, or a mapping, with the next report.
    """

    config: Any
    folder: Any
    checkpoint: Path | None
    checkpoint_wanted: Callable[[], bool]
    saves: Any
    note: Callable[[str, int | Mapping[str, int]], None]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a training job. Returns the exit code: 0 done, 1 failed, 2 invalid settings, 130 interrupted."""
    try:
        prepared = _prepare(arguments)
    except KeyboardInterrupt:
        print("stopped before the run began: nothing is lost", file=sys.stderr, flush=True)
        return INTERRUPTED
    if isinstance(prepared, int):
        return prepared
    from verl_omni.trainer.run import operator_reporter

    config, stop, without_effect = prepared
    with operator_reporter.from_environment() as reporter:
        return run_training(config, reporter, lambda run, resources: _train(run, resources, stop), without_effect)


def _prepare(arguments: Sequence[str] | None) -> tuple[Any, StopOnSignal, dict[str, str]] | int:
    """Settings, signal handler and settings without effect of a run; the exit code if it cannot begin."""
    overrides = list(sys.argv[1:] if arguments is None else arguments)
    has_accelerator = startup.accelerator_present()
    variables = dict(os.environ)
    startup.prepare_environment(has_accelerator)  # first: a module of the user's may import torch and verl
    try:
        config = configuration.load(overrides)
    except configuration.SettingsError as error:
        if isinstance(failed := error.__cause__, ExtensionFailed):
            traceback.print_exception(failed.__cause__)  # where in the user's module
        return _refuse(str(error))
    from verl_omni.trainer.output import hub_destination

    if problem := _other_distribution() or hub_destination.find_problem(config, variables):
        return _refuse(problem)
    stop = StopOnSignal()
    try:
        _fetch_inputs(config)
        startup.fit_to_machine(config, has_accelerator)
        _check_model(config.actor_rollout_ref.model)
        unused = _check_files(config)
    except (OSError, ValueError) as error:
        return _refuse(str(error))
    without_effect = configuration.without_effect(overrides, config, has_accelerator=has_accelerator)
    return config, stop, without_effect | unused


def _refuse(message: str) -> int:
    """Report invalid settings: there is no run folder yet, but the operator shows the message in the job's status."""
    from verl_omni.trainer.run import operator_reporter

    with operator_reporter.from_environment() as reporter:
        reporter.post({"event": "error", "message": message, "kind": "SettingsError", "reason": "ApplicationError"})
    print(message, file=sys.stderr, flush=True)
    return USAGE_ERROR


def _fetch_inputs(config: Any) -> None:
    """Copy what is in stores; raises as `inputs.fetch`."""
    from verl_omni.trainer.output import inputs

    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    inputs.fetch(config, Path(home) / "omni-operator" / "stores", lambda text: print(text, flush=True))


def _check_model(model: Any) -> None:
    """Raises FileNotFoundError: engine or trainer cannot load a component of the model's folder."""
    from verl_omni.utils import model_layout

    if problems := list(model_layout.find_problems(Path(model.path), extended=model.external_lib is not None)):
        raise FileNotFoundError("\n".join(f"actor_rollout_ref.model.path: {text}" for text in problems))


def _check_files(config: Any) -> dict[str, str]:
    """Check what the settings name outside the configuration.

    Returns:
        Settings that have no effect because of the contents of the files, each with the reason.

    Raises:
        FileNotFoundError, ValueError: a checkpoint, a scorer or the judge's model does not exist, a scorer does not
            take its settings, a file of prompts cannot be used, or a row has no scorer.
    """
    from verl_omni.trainer.data import dataset_class, row_scorers
    from verl_omni.trainer.run import checkpoints
    from verl_omni.trainer.settings import judge_settings, reward_settings
    from verl_omni.utils.model_folder import model_folder

    dataset_class.check_with_files(config)
    if (judge := judge_settings.model_path(config)) and not model_folder(
        judge, f"{judge_settings.MODEL}.model_path"
    ).is_dir():
        raise FileNotFoundError(
            f"{judge_settings.MODEL}.model_path: {judge} does not exist; write the folder of a model"
        )
    if problems := [
        *reward_settings.find_problems(config.reward),
        *reward_settings.normalization_problems(config),
        *reward_settings.evaluation_problems(config),
        *reward_settings.sample_problems(config),
    ]:
        raise ValueError("\n".join(problems))
    if config.trainer.resume_mode == "resume_path":
        checkpoints.step_of(Path(config.trainer.resume_from_path))
    return row_scorers.check(config)


def run_training(
    config: Any,
    reporter: Any,
    train: Callable[[Run, contextlib.ExitStack], None],
    without_effect: Mapping[str, str] = types.MappingProxyType({}),
    *,
    cgroups: Path = Path("/sys/fs/cgroup"),
) -> int:
    """Run `train`, and record in the run folder how it ends. Returns the exit code.

    The last line on standard error is the error; its traceback is above, with what Ray prints while it stops. A run
    whose folder another program has taken over ends as an interrupted one, and records nothing. `KeyboardInterrupt`
    ends it at once: it sends no results, and says what is lost.

    Args:
        train: gets the run, and the stack on which it puts what must be stopped.
        without_effect: settings that do nothing here, with the reason.
        cgroups: folder of the container's counters.
    """
    from verl_omni.trainer.run.run_folder import TakenOver

    try:
        return _recorded(config, reporter, train, without_effect, cgroups)
    except TakenOver as error:
        print(error, file=sys.stderr, flush=True)
        return INTERRUPTED
    except KeyboardInterrupt:
        text = "stopped while the run was ending: processes of Ray may be left, which `ray stop` ends"
        print(text, file=sys.stderr, flush=True)
        return INTERRUPTED


def _recorded(
    config: Any,
    reporter: Any,
    train: Callable[[Run, contextlib.ExitStack], None],
    without_effect: Mapping[str, str],
    cgroups: Path,
) -> int:
    from verl_omni.trainer.output.uploads import Results
    from verl_omni.trainer.run import checkpoints, machine, run_start
    from verl_omni.trainer.run.run_folder import RunFolder
    from verl_omni.trainer.run.save_requests import SaveRequests

    killed_before = machine.killed_for_memory(cgroups)
    errors: list[str] = []
    results = Results()
    saves = SaveRequests()

    def on_event(event: Mapping[str, Any]) -> None:
        line = format_event(event)
        if event["event"] == "error":
            errors.append(line)
        else:
            print(line, flush=True)
        saves.observe(event)
        reporter.post(event)
        results.observe(event)

    folder = RunFolder(Path(config.trainer.default_local_dir), on_event)
    checkpoint = run_start.begin(config, folder, without_effect)

    def wanted() -> bool:
        return reporter.checkpoint_wanted() or saves.requested()

    run = Run(config, folder, checkpoint, wanted, saves, reporter.note)
    code = FAILURE
    at_once = False
    with contextlib.ExitStack() as resources:
        try:
            results.open(config, folder)
            train(run, resources)
            code = OK
        except KeyboardInterrupt:
            at_once = True
            code = _record_loss(folder, checkpoint)
        except Exception as error:  # recorded for the user, then the exit code
            code = _record_failure(folder, error, killed=machine.killed_for_memory(cgroups) - killed_before)
        finally:
            if not at_once:
                results.wait(complete=code == OK)
            _report(folder)
        if at_once:
            return code
        newest = checkpoints.latest(folder.path / "checkpoints")
        code = _send_last(results, folder, newest, code)
    if code == OK:
        step = int(config.trainer.total_training_steps) if newest is None else checkpoints.step_of(newest)
        folder.event("done", step=step, report=str(folder.path / "report.html"))
    for line in errors:
        print(line, file=sys.stderr, flush=True)
    return code


def _record_loss(folder: Any, begun: Path | None) -> int:
    """Record that the run, which began at a checkpoint, stops in the middle of a step. Returns the exit code."""
    from verl_omni.trainer.run import checkpoints

    steps = folder.metrics()
    newest = checkpoints.latest(folder.path / "checkpoints")
    complete = int(steps[-1]["step"] or 0) if steps else 0
    saved, first = (None if path is None else checkpoints.step_of(path) for path in (newest, begun))
    folder.event("stopped", message=describe_loss(complete, saved, first or 0), kind="KeyboardInterrupt")
    return INTERRUPTED


def _send_last(results: Any, folder: Any, checkpoint: Path | None, code: int) -> int:
    """Send the last results. Returns the exit code: a complete run whose results cannot be sent has failed."""
    try:
        results.finish(checkpoint, complete=code == OK)
    except Exception as error:  # recorded for the user, then the exit code
        return _record_failure(folder, error)
    return code


def _train(run: Run, resources: contextlib.ExitStack, stop: StopOnSignal) -> None:
    """Start everything and train; what must be stopped is put on `resources`."""

    def report_phase(text: str) -> None:
        run.folder.event("phase", text=text)

    cluster = startup.start_ray(run.config, report_phase)
    resources.callback(cluster.stop)
    stop.listen()  # Ray has replaced our handler of SIGTERM
    train_on(cluster, run, resources, report_phase, lambda: stop.requested)


def train_on(
    cluster: Cluster,
    run: Run,
    resources: contextlib.ExitStack,
    report_phase: Callable[[str], None],
    stop_requested: Callable[[], bool],
) -> None:
    """Train on a Ray that runs, and which is stopped with the stack."""
    from verl_omni.trainer.data import prompt_dataset, prompt_warnings
    from verl_omni.trainer.memory_estimate import needless
    from verl_omni.trainer.settings import async_settings, judge_settings

    if risks := configuration.describe_risks(run.config):
        run.folder.event("warning", reason="RecipeRisk", message=risks)
    if unlimited := async_settings.unlimited_text(run.config):
        run.folder.event("warning", reason="OlderSamplesNotLimited", message=unlimited)
    train, held_out = prompt_dataset.load_checked(run.config)
    for text in prompt_warnings.describe_truncated(run.config, train, held_out):
        run.folder.event("warning", reason="PromptsTruncated", message=text)
    for text in prompt_warnings.describe_unread(run.config, train, held_out):
        run.folder.event("warning", reason="SettingsWithoutEffect", message=text)
    pairs = _pairs(run.config, train)
    for text in pairs.notes if pairs is not None else ():
        run.folder.event("warning", reason="SettingsWithoutEffect", message=text)
    stack = startup.start_actors(run.config, cluster, report_phase)
    resources.callback(stack.stop)
    if stack.device_memory is not None and not judge_settings.shared(run.config):  # whose memory is not estimated

        def report_needless(text: str) -> None:
            run.folder.event("warning", reason="OffloadingNotNeeded", message=text)

        resources.callback(needless.search(run.config, stack.device_memory, report_needless))
    from verl_omni.trainer.run.step_checkpoints import RunRequests
    from verl_omni.trainer.run.trackers import open_trackers

    kept = run.folder.metrics()
    tracking = open_trackers(run.config, run.folder.path, first=int(kept[-1]["step"]) + 1 if kept else 0)
    if tracking is not None:
        resources.callback(tracking.finish)
    run.folder.event("phase", text="publishing the first weights, evaluating")
    requests = RunRequests(
        stop_requested, run.checkpoint_wanted, lambda: run.saves.wait_for_end(stop_requested, report_phase)
    )
    loop = build_loop(
        run.config, stack, run.folder, train, held_out, requests, note=run.note, tracking=tracking, pairs=pairs
    )
    loop.fit(run.checkpoint)


def build_loop(
    config: Any,
    stack: Stack,
    folder: RunFolder,
    train: Any,
    held_out: Any | None,
    requests: RunRequests,
    *,
    note: Callable[[str, int | Mapping[str, int]], None] = lambda name, value: None,
    tracking: Trackers | None = None,
    pairs: PreferencePairs | None = None,
) -> TrainingLoop:
    """The training loop on a stack that runs; its pools of replicas report to the run folder from here on.

    Args:
        train, held_out: data sets of training and evaluation.
        note: gives the operator a number, or a mapping, with the next report.
        pairs: the training data as preference pairs, where no samples are generated.
    """
    # After Ray's start: they load Ray.
    from verl_omni.reward_loop.part_settings import held_out_scorers
    from verl_omni.trainer.data.prompt_dataset import PromptOrder
    from verl_omni.trainer.generation.engines import Engines
    from verl_omni.trainer.generation.evaluation import Evaluation
    from verl_omni.trainer.generation.sample_generator import SampleGenerator
    from verl_omni.trainer.generation.training_batches import TrainingBatches
    from verl_omni.trainer.loop import TrainingLoop
    from verl_omni.trainer.metrics.run_warnings import RunWarnings
    from verl_omni.trainer.metrics.step_recorder import StepRecorder
    from verl_omni.trainer.replicas.replica_reports import report_pools
    from verl_omni.trainer.run.checkpoint_saver import saver_of_run
    from verl_omni.trainer.run.step_checkpoints import StepCheckpoints
    from verl_omni.trainer.update.policy_update import PolicyUpdate

    total = int(config.trainer.total_training_steps)
    held_out_keys = held_out_scorers(config.reward.reward_functions)
    warnings = RunWarnings(folder, held_out_keys, config.reward.early_stopping_patience)
    recorder = StepRecorder(folder, total, tracking=tracking, warnings=warnings)
    saver = saver_of_run(config, stack.workers, folder)
    checkpoints = StepCheckpoints(
        saver,
        requests,
        every=config.trainer.save_freq,
        adapter_every=config.trainer.adapter_save_freq,
        total=total,
        before_save=recorder.record_pending,
    )
    data = config.data
    order = PromptOrder(len(train), data.train_batch_size, data.seed, shuffle=data.shuffle)
    engines = Engines(config, stack, recorder.exported)
    generator = SampleGenerator(config, stack, engines, folder, checkpoints.poll_requests)
    update = PolicyUpdate(config, stack.workers, order, recorder.exported, pairs)
    evaluation = Evaluation(config, generator, engines, recorder, held_out, last=total)
    batches = TrainingBatches(
        config,
        generator,
        train,
        order,
        last=total,
        offline=pairs is not None,
        is_evaluated=evaluation.is_due,
        parts=startup.parts_of_step(config).sizes,
        update_parts=update.begin_parts,
    )
    report_pools(stack, folder, note, checkpoints.poll_requests)
    return TrainingLoop(total, stack.workers, folder, batches, update, engines, evaluation, recorder, checkpoints)


def _record_failure(folder: Any, error: Exception, killed: int = 0) -> int:
    """Record an error. Returns the exit code.

    Args:
        killed: number of processes that the kernel killed during the run because the container's memory ran out.
    """
    from verl_omni.utils.root_cause import describe_error, root_cause

    cause = root_cause(error)
    kind = type(cause).__name__
    if kind == "TakenOver":
        raise cause
    if kind == "Interrupted":
        folder.event("stopped", message=str(error), kind=kind)
        return INTERRUPTED
    traceback.print_exc()
    # Messages of this package's own errors are complete sentences; others need their type to be understood.
    sentence = type(cause).__module__.startswith("verl_omni.") and str(cause)
    message = sentence or describe_error(error)
    reason = _reason(error)
    if killed and reason in ("ApplicationError", "WorkerLost"):
        reason = "OutOfMemory"
        message = f"the memory of the trainer's container ran out, and the kernel killed {killed} processes; {message}"
    folder.event("error", message=message, kind=kind, reason=reason)
    return FAILURE


def _pairs(config: Any, train: Any) -> Any | None:
    """Pairs of images of the training data; None if the engine generates samples."""
    if config.algorithm.sample_source == "online":
        return None
    from verl_omni.trainer.data.preferences import PreferencePairs

    files = config.data.train_files
    size = config.actor_rollout_ref.rollout.pipeline
    first = files if isinstance(files, str) else files[0]
    return PreferencePairs(train, Path(first).parent, height=size.height, width=size.width)


def _reason(error: BaseException) -> str:
    """The failure reason in the operator's API (`FailureReason`). Ray's wrapper of an error has its classes."""
    from verl_omni.utils.root_cause import is_lost_process
    from verl_omni.weight_sync.errors import is_loss_of_replicas

    names = {kind.__name__ for kind in type(error).__mro__}
    if "OutputNotSent" in names:
        return "OutputNotSent"
    if "SampleLost" in names or is_loss_of_replicas(error):
        return "WorkerLost"
    if "WeightSyncError" in names:
        return "WeightSyncFailed"
    if "OutOfMemoryError" in names:
        return "OutOfMemory"
    return "WorkerLost" if is_lost_process(error) else "ApplicationError"


def _report(folder: Any) -> None:
    """Write the report of the steps so far; the run does not fail if that is not possible."""
    from verl_omni.trainer import report

    folder.check_owner()
    try:
        report.write(folder.path)
    except (OSError, ValueError) as error:
        folder.event("warning", reason="ReportNotWritten", message=f"report.html was not written: {error}")


def _other_distribution() -> str | None:
    """An error message if the reference implementation, which has the same import name, is installed too."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        release = version("verl-omni")
    except PackageNotFoundError:
        return None
    return (
        f"verl-omni {release} and omni-operator are both installed, and both are imported as verl_omni: uninstall one"
    )


def __getattr__(name: str) -> Any:
    from verl_omni.reference_names import missing_name

    raise missing_name("verl_omni.trainer.main_diffusion", name)


if __name__ == "__main__":
    sys.exit(main())
