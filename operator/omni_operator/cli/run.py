"""`drl run`: train on this machine, and show how it goes."""

from __future__ import annotations

import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from omni_operator.api.job import DiffusionRLJob
from omni_operator.cli import child, leftovers
from omni_operator.cli.common import USAGE_ERROR, errors, job_or_exit
from omni_operator.cli.progress import Tail, display, evaluation
from omni_operator.plan.overrides import ReservedOverride, overrides

INTERRUPTED = 130
GRACE_SECONDS = 60.0
LOG_LINES = 12
NOISE = ("INFO ", "WARNING ", "[36m(")


def run(
    file: Annotated[Path, typer.Argument(help="The job.")],
    runs: Annotated[Path, typer.Option(help="Where run folders are.")] = Path("runs"),
    fresh: Annotated[bool, typer.Option("--fresh", help="Delete the run folder and begin again.")] = False,
    steps: Annotated[int | None, typer.Option(min=1, help="Train for this many steps instead.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Use this seed instead.")] = None,
) -> None:
    """Run a job here: a local Ray, the same engine, no cluster. Goes on from the last checkpoint."""
    job = _changed(job_or_exit(file), steps=steps, seed=seed)
    folder = runs / job.metadata.name
    try:
        arguments = overrides(job, folder=file.parent, run=str(folder))
    except ReservedOverride as error:
        errors.print(f"{file}: {error}", markup=False)
        raise typer.Exit(USAGE_ERROR) from error
    _prepare(folder, file, arguments, fresh=fresh)
    raise typer.Exit(_supervise(job, folder, arguments))


def _changed(job: DiffusionRLJob, **wanted: int | None) -> DiffusionRLJob:
    update = {name: value for name, value in wanted.items() if value is not None}
    trainer = job.spec.trainer.model_copy(update=update)
    return job.model_copy(update={"spec": job.spec.model_copy(update={"trainer": trainer})})


def _prepare(folder: Path, file: Path, arguments: list[str], *, fresh: bool) -> None:
    """Make the run folder, or check that it belongs to the same job."""
    if fresh and folder.exists():
        shutil.rmtree(folder)
    rendered = "\n".join(arguments) + "\n"
    kept = folder / "overrides.txt"
    if kept.exists() and _essence(kept.read_text()) != _essence(rendered):
        errors.print(
            f"{folder} holds a run with other settings. Use --fresh to delete it and begin again, "
            "or give the job another name.", markup=False,
        )  # fmt: skip
        raise typer.Exit(USAGE_ERROR)
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, folder / "job.yaml")
    kept.write_text(rendered)


def _essence(rendered: str) -> list[str]:
    """Settings that a resumed run must share with the one it goes on from; it may be made longer."""
    return [line for line in rendered.splitlines() if not line.startswith("trainer.total_training_steps=")]


def _supervise(job: DiffusionRLJob, folder: Path, arguments: list[str]) -> int:
    console = Console(soft_wrap=True)
    console.print(f"run folder {folder}, log {folder / 'train.log'}", markup=False, highlight=False)
    run_id = secrets.token_hex(8)
    before = leftovers.segments()
    tail = Tail(folder / "progress.jsonl")
    trainer = child.start(
        job.spec.algorithm.entrypoint, arguments, log=folder / "train.log", mark={leftovers.MARK: run_id}
    )
    seen: list[dict[str, Any]] = []
    try:
        with _interrupts_to(trainer, console), display(console) as shown:
            while True:
                ended = trainer.poll() is not None
                for event in tail.events():
                    seen.append(event)
                    shown.show(event)
                if ended:
                    break
                time.sleep(0.2)
    finally:
        _clean(console, run_id, before)
    return _summary(console, folder, trainer.returncode, seen)


@contextmanager
def _interrupts_to(trainer: subprocess.Popen[bytes], console: Console) -> Iterator[None]:
    """Ctrl-C: once, the trainer ends after its step; twice, at once; three times, it is killed."""
    pressed = 0

    def handle(number: int, frame: object) -> None:
        nonlocal pressed
        pressed += 1
        if pressed == 1:
            console.print("stopping after this step, with a checkpoint; press Ctrl-C again to stop at once")
            trainer.send_signal(signal.SIGINT)
        elif pressed == 2:
            console.print("stopping at once")
            trainer.terminate()
        else:
            trainer.kill()

    old = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _clean(console: Console, run_id: str, before: set[Path]) -> None:
    if count := leftovers.stop(run_id, grace=GRACE_SECONDS):
        console.print(f"ended {count} processes that the run had left")
    leftovers.remove_segments(before)


def _summary(console: Console, folder: Path, code: int, seen: list[dict[str, Any]]) -> int:
    measured = [event for event in seen if event["event"] == "step" and "val/reward/mean" in event]
    if measured:
        for word, event in (("before", measured[0]), ("after", measured[-1])):
            console.print(f"{word:>6}  step {event['step']}: {evaluation(event)}", highlight=False)
    if (folder / "report.html").exists():
        console.print(f"report {folder / 'report.html'}", markup=False, highlight=False)
    if code == 0:
        return 0
    if any(event["event"] == "stopped" for event in seen):
        console.print("the same command goes on from here", highlight=False)
        return INTERRUPTED
    failure = next((event["message"] for event in reversed(seen) if event["event"] == "error"), None)
    errors.print(f"the trainer failed (exit code {code}): {failure or 'see the log'}", markup=False)
    for line in _last_lines(folder / "train.log"):
        errors.print(f"  {line}", markup=False)
    errors.print(f"whole log: {folder / 'train.log'}", markup=False)
    return 1


def _last_lines(log: Path) -> list[str]:
    """The end of the log without what the engine says about itself."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 65536))
        lines = file.read().decode(errors="replace").splitlines()
    said = [line for line in lines if line.strip() and not any(noise in line for noise in NOISE)]
    return said[-LOG_LINES:]
