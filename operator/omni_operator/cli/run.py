"""`drl run`: a job on this machine, from the YAML to the report."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from omni_operator import plan
from omni_operator.api import DiffusionRLJob

from . import (
    console,
    failure,
    machine,
    preflight,
    processes,
    results,
    run_folder,
    shared_memory,
    supervisor,
    training_stack,
)  # fmt: skip
from .json_lines import JsonLinesReader, MalformedLine
from .progress_display import Display, make_display
from .render import Assignments, JobFile, Runs
from .run_state import RunState, apply_event

LOG_BYTES = 256 * 1024  # of the log's end that is read for the reason of a failure


def run(
    job_file: JobFile,
    runs: Runs = Path("runs"),
    fresh: Annotated[bool, typer.Option("--fresh", help="Keep an earlier run aside and start from nothing.")] = False,
    assignments: Assignments = None,
    steps: Annotated[int | None, typer.Option(help="The same as --set spec.trainer.totalSteps=N.", metavar="N")] = None,
    seed: Annotated[int | None, typer.Option(help="The same as --set spec.seed=N.", metavar="N")] = None,
    plain: Annotated[bool, typer.Option("--plain", help="A line a step, on a terminal too.")] = False,
    patience: Annotated[
        float,
        typer.Option(
            help="Seconds that a process gets to end when it is told to, before it is killed.", min=0, metavar="SECONDS"
        ),
    ] = 30.0,
) -> None:
    """Run a job on this machine; one that was stopped goes on from its last checkpoint.

    Ctrl-C ends it after the running step, with a checkpoint; a second one ends it at once.
    """
    short = {"spec.trainer.totalSteps": steps, "spec.seed": seed}
    changes = [*(assignments or []), *(f"{name}={value}" for name, value in short.items() if value is not None)]
    loaded = console.loaded(job_file, changes)
    job = plan.resolve_paths(loaded.job, str(job_file.resolve().parent))
    devices = () if job.spec.trainer.accelerator.vendor == "CPU" else machine.devices()
    if found := tuple(preflight.problems(job, loaded.document, devices, training_stack.missing_stack())):
        console.refuse(console.report(found))
    layout = plan.local_layout(job, str(runs.resolve()))
    folder = Path(layout.run_folder)
    try:
        with run_folder.locked(folder) as lock:
            run_folder.prepare(
                folder, job, loaded.document, lambda each: plan.render_overrides(each, layout), fresh=fresh
            )
            if run_folder.is_finished(folder, job.spec.trainer.total_steps):
                _say_finished(job, folder)
                return
            session = Session(job, folder, plan.render_command(job, layout, sys.executable), patience)
            code = session.run(lock, environment(os.environ, cpu=not devices), plain=plain)
    except run_folder.RunFolderError as error:
        console.refuse(str(error))
    if code == console.INTERRUPTED:
        console.say(f"go on with: drl run {shlex.quote(str(job_file))}")
    if code:
        raise typer.Exit(code)


def environment(base: Mapping[str, str], *, cpu: bool) -> dict[str, str]:
    """PURE: the child's variables; what the user set stays."""
    wanted = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1"}
    if cpu:
        # Ray starts its workers at nice 15, where they starve beside any busy process.
        wanted |= {"VERL_PLATFORM": "cpu", "OMP_NUM_THREADS": "1", "RAY_worker_niceness": "0"}
    return {**wanted, **base}


@dataclass(slots=True)
class Session:
    """One start of the trainer: shown while it lasts, explained when it ends, nothing left of it."""

    job: DiffusionRLJob
    folder: Path
    command: Sequence[str]
    patience: float
    state: RunState = field(default_factory=RunState)

    def run(self, lock: int, variables: Mapping[str, str], *, plain: bool) -> int:
        """Returns the exit code of the program."""
        out = Console(file=sys.stdout, emoji=False)
        log = self.folder / run_folder.LOG
        log_start = log.stat().st_size if log.exists() else 0
        memory, kills = shared_memory.Snapshot.take(), machine.out_of_memory_kills()
        reader = JsonLinesReader(self.folder / run_folder.PROGRESS)
        processes.adopt_orphans()
        try:
            with make_display(self.job.metadata.name, out, plain=plain) as shown:
                shown.note(f"{self.job.metadata.name}: running in {self.folder}, log in {log}")
                ended = supervisor.run(
                    self.command, environment=variables, log=log, keep_open=[lock], patience=self.patience,
                    look=lambda: self._look(reader, shown), stopping=lambda number: self._stopping(number, shown),
                )  # fmt: skip
        finally:
            self._clean_up(memory)
        killed = machine.out_of_memory_kills() > kills
        return self._conclude(ended, failure.read_tail(log, log_start, LOG_BYTES), out_of_memory=killed)

    def _look(self, reader: JsonLinesReader, shown: Display) -> None:
        for record in reader.read_new():
            if isinstance(record, MalformedLine):
                shown.note(f"unreadable line in {run_folder.PROGRESS}: {record.text[:80]!r}")
            else:
                self.state = apply_event(self.state, record)
                shown.event(record, self.state)

    def _stopping(self, number: signal.Signals, shown: Display) -> None:
        match number:
            case signal.SIGINT:
                started = self.state.last is not None
                when = "after this step, with a checkpoint" if started else "once the trainer is up"
                shown.note(f"stopping {when}; Ctrl-C again ends it at once")
            case signal.SIGTERM:
                shown.note("ending it at once; Ctrl-C again kills it")
            case _:
                shown.note("killing it")

    def _clean_up(self, memory: shared_memory.Snapshot) -> None:
        if ended := processes.end_all(min(processes.GRACE_SECONDS, self.patience)):
            console.say(f"ended what the trainer had left running: {', '.join(ended)}")
        if removed := memory.clean():
            console.say(f"removed what the trainer had left in {shared_memory.FOLDER}: {', '.join(removed)}")

    def _conclude(self, ended: supervisor.ChildExit, log: Sequence[str], *, out_of_memory: bool) -> int:
        if ended.code == 0:
            console.say("\n".join(results.summary(self.folder)))
            return console.OK
        if failure.was_stopped(ended.code, ended.asked):
            console.say(self._stopped())
            return console.INTERRUPTED
        lines = [f"failed: {failure.reason(ended.code, self.state.failure, out_of_memory=out_of_memory)}"]
        lines += [f"  | {line}" for line in failure.log_excerpt(log)]
        lines.append(f"the whole log: {self.folder / run_folder.LOG}")
        typer.echo("\n".join(lines), err=True)
        return console.FAILED

    def _stopped(self) -> str:
        saved = run_folder.last_checkpoint(self.folder)
        text = f"stopped after step {self.state.step} of {self.job.spec.trainer.total_steps}; "
        return text + (f"checkpoint of step {saved}" if saved is not None else "no checkpoint yet")


def _say_finished(job: DiffusionRLJob, folder: Path) -> None:
    console.say(f"{job.metadata.name} has finished already; --fresh runs it again, more totalSteps go on")
    console.say("\n".join(results.summary(folder)))
