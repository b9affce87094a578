"""`drl run`: run a job on this machine, from the YAML to the report."""

import os
import shlex
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from omni_operator import plan
from omni_operator.api import DiffusionRLJob
from omni_operator.api.files.job_loader import STDIN
from omni_operator.cli import console
from omni_operator.cli.machine import machine_facts, training_stack
from omni_operator.cli.options import Assignments, JobFile, Runs, job_folder

from . import failure, preflight, processes, run_folder, run_text, shared_memory, supervisor
from .json_lines import JsonLinesReader, MalformedLine, read_records
from .progress_display import Display, make_display
from .run_state import RunState, apply_event, evaluation

LOG_BYTES = 256 * 1024  # read from the end of the log to find the cause of a failure


def run(
    job_file: JobFile,
    runs: Runs = Path("runs"),
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start a new run; an earlier run folder is renamed and kept.")
    ] = False,
    assignments: Assignments = None,
    steps: Annotated[int | None, typer.Option(help="Same as --set spec.trainer.totalSteps=N.", metavar="N")] = None,
    seed: Annotated[int | None, typer.Option(help="Same as --set spec.seed=N.", metavar="N")] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Print one line per step instead of a progress bar.")] = False,
    patience: Annotated[
        float, typer.Option(help="Seconds that processes get to exit before they are killed.", min=0, metavar="SECONDS")
    ] = 30.0,
) -> None:
    """Run a job on this machine. Run the same command to resume a stopped run from its last checkpoint.

    Example: drl run examples/colors-grpo.yaml --steps 10

    Ctrl-C stops after the current step and writes a checkpoint; a second Ctrl-C stops at once.
    """
    short = {"spec.trainer.totalSteps": steps, "spec.seed": seed}
    changes = [*(assignments or []), *(f"{name}={value}" for name, value in short.items() if value is not None)]
    loaded = console.load_or_refuse(job_file, changes)
    job = plan.resolve_paths(loaded.job, str(job_folder(job_file)))
    accelerators = () if job.spec.trainer.accelerator.vendor == "CPU" else machine_facts.find_accelerators()
    stack = training_stack.missing_stack()
    problems = [
        *preflight.file_problems(job, loaded.document),
        *preflight.variable_problems(job, loaded.document, os.environ),
        *preflight.machine_problems(job, loaded.document, accelerators, stack),
    ]
    if problems:
        console.refuse(console.format_problems(problems))
    layout = plan.local_layout(job, str(runs.resolve()))
    folder = Path(layout.run_folder)
    try:
        with run_folder.locked(folder) as lock:
            run_folder.prepare(
                folder, job, loaded.document, lambda each: plan.render_overrides(each, layout), fresh=fresh
            )
            run_folder.check_length(folder, job.spec.trainer.total_steps)
            if run_folder.is_finished(folder, job.spec.trainer.total_steps):
                finished = "is already finished; to run it again, add --fresh; to continue it, raise totalSteps"
                console.say("\n".join([f"{job.metadata.name} {finished}", *summary(folder)]))
                return
            session = Session(job, folder, plan.render_command(job, layout, sys.executable), patience)
            environment = trainer_environment(
                console.user_environment(), cpu=not accelerators, hub=job.spec.sends_to_hub
            )
            code = session.run(lock, environment, plain=plain)
    except run_folder.RunFolderError as error:
        console.refuse(str(error))
    if code == console.INTERRUPTED:
        console.say(f"resume with: {_resume_command(job_file, folder, runs, changes)}")
    if code:
        raise typer.Exit(code)


def trainer_environment(base: Mapping[str, str], *, cpu: bool, hub: bool) -> dict[str, str]:
    """PURE: the trainer's environment variables; those that the user set are kept.

    Args:
        hub: whether it sends results to the hub. It then must not be told to stay offline.
    """
    defaults = {"TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1"}
    if not hub:
        defaults["HF_HUB_OFFLINE"] = "1"
    if cpu:
        # Ray starts its workers at nice 15, where they starve next to any busy process.
        defaults |= {"VERL_PLATFORM": "cpu", "RAY_worker_niceness": "0"}
    return {**defaults, **base}


@dataclass(slots=True)
class Session:
    """One start of the trainer: shows its progress, explains its exit, and cleans up after it."""

    job: DiffusionRLJob
    folder: Path
    command: Sequence[str]
    patience: float
    state: RunState = field(default_factory=RunState)

    def run(self, lock: int, environment: Mapping[str, str], *, plain: bool) -> int:
        """Run the trainer to its end. Returns the exit code of `drl`."""
        log = self.folder / run_folder.LOG
        log_start = log.stat().st_size if log.exists() else 0
        segments = shared_memory.segments()
        kills = machine_facts.out_of_memory_kills()
        reader = JsonLinesReader(self.folder / run_folder.PROGRESS)
        processes.adopt_orphans()
        name = self.job.metadata.name
        try:
            with make_display(name, Console(file=sys.stdout, emoji=False), plain=plain) as display:
                display.note(f"{name}: run folder {console.short_path(self.folder)}, log {console.short_path(log)}")
                ended = supervisor.run(
                    self.command,
                    environment=environment,
                    log=log,
                    keep_open=[lock],
                    patience=self.patience,
                    poll=lambda: self._show_events(reader, display),
                    on_signal=lambda number: self._announce_signal(number, display),
                )
        finally:
            self._clean_up(segments)
        killed = machine_facts.out_of_memory_kills() > kills
        return self._conclude(ended, failure.read_tail(log, log_start, LOG_BYTES), out_of_memory=killed)

    def _show_events(self, reader: JsonLinesReader, display: Display) -> None:
        for record in reader.read_new():
            if isinstance(record, MalformedLine):
                display.note(f"malformed line in {run_folder.PROGRESS}: {record.text[:80]!r}")
            else:
                self.state = apply_event(self.state, record)
                display.event(record, self.state)

    def _announce_signal(self, number: signal.Signals, display: Display) -> None:
        match number:
            case signal.SIGINT:
                started = self.state.last is not None
                when = "after this step, with a checkpoint" if started else "as soon as the trainer has started"
                display.note(f"stopping {when}; press Ctrl-C again to stop now")
            case signal.SIGTERM:
                display.note("stopping now, without a checkpoint; press Ctrl-C again to kill the trainer")
            case _:
                display.note("killing the trainer")

    def _clean_up(self, segments: frozenset[tuple[str, int]]) -> None:
        if names := processes.terminate_descendants(min(processes.GRACE_SECONDS, self.patience)):
            console.say(f"terminated processes that the trainer left running: {', '.join(names)}")
        if removed := shared_memory.remove_newer(segments):
            console.say(f"removed shared memory that the trainer left in {shared_memory.FOLDER}: {', '.join(removed)}")

    def _conclude(self, ended: supervisor.ChildExit, log: Sequence[str], *, out_of_memory: bool) -> int:
        if ended.code == 0:
            console.say("\n".join(summary(self.folder)))
            return console.OK
        if failure.was_stopped(ended.code, ended.stop_requests):
            saved = run_folder.last_checkpoint(self.folder)
            checkpoint = f"last checkpoint: step {saved}" if saved is not None else "no checkpoint yet"
            console.say(f"stopped after step {self.state.step} of {self.job.spec.trainer.total_steps}; {checkpoint}")
            return console.INTERRUPTED
        log_path = console.short_path(self.folder / run_folder.LOG)
        lines = failure.explain(
            ended.code,
            self.state.failure,
            log,
            log_path,
            out_of_memory=out_of_memory,
            disk_full=shutil.disk_usage(self.folder).free < 1 << 20,  # less than a MiB is left
        )
        console.complain("\n".join(lines))
        return console.USAGE if ended.code == console.USAGE else console.FAILED


def summary(folder: Path) -> list[str]:
    """Reward before and after, and the paths of checkpoint and report."""
    lines = [line for line in read_records(folder / run_folder.METRICS) if not isinstance(line, MalformedLine)]
    return [*_rewards(lines), *_paths(folder)]


def _rewards(lines: list[dict[str, Any]]) -> list[str]:
    """Held-out reward at the first and last evaluation; without evaluations, training reward of both steps."""
    held_out = [result for line in lines if (result := evaluation(line))]
    if held_out:
        before = held_out[0]
        after = held_out[-1]
        ends = [f"{run_text.evaluation_text(result)} at step {result.step}" for result in (before, after)]
        images = f" ({after.images} images)" if after.images else ""
        return [f"held-out reward {' -> '.join(ends if before != after else ends[:1])}{images}"]
    steps = [line for line in lines if line.get("reward/mean") is not None or line.get("actor/loss") is not None]
    if not steps:
        return ["no step finished"]
    first, last = (", ".join(run_text.learning_texts(line)) for line in (steps[0], steps[-1]))
    return [f"training {f'{first} -> ' if len(steps) > 1 else ''}{last} at step {steps[-1]['step']}"]


def _paths(folder: Path) -> list[str]:
    paths = []
    if (checkpoint := run_folder.last_checkpoint(folder)) is not None:
        paths.append(f"checkpoint: {console.short_path(folder / 'checkpoints' / f'step_{checkpoint:06d}')}")
    if (folder / run_folder.REPORT).is_file():
        paths.append(f"report: {console.short_path(folder / run_folder.REPORT)}")
    return paths


def _resume_command(job_file: Path, folder: Path, runs: Path, changes: Sequence[str]) -> str:
    """The command that resumes the run. For a job from standard input it names the copy in the run folder."""
    if job_file == STDIN:
        job_file = Path(console.short_path(folder / run_folder.JOB))
        changes = ()
    parts = ["drl", "run", str(job_file)]
    if runs != Path("runs"):
        parts += ["--runs", str(runs)]
    for change in changes:
        parts += ["--set", change]
    return shlex.join(parts)
