"""`drl render`: the trainer's overrides that a job stands for."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from omni_operator import plan

from . import console

JobFile = Annotated[Path, typer.Argument(help="A file with a DiffusionRLJob.", metavar="JOB.yaml")]
Runs = Annotated[Path, typer.Option("--runs", help="Folder of the run folders.", metavar="DIR")]
Assignments = Annotated[
    list[str] | None, typer.Option("--set", help="Replace a value of the file.", metavar="spec.field=value")
]


def render(
    job_file: JobFile,
    runs: Runs = Path("runs"),
    assignments: Assignments = None,
    command: Annotated[bool, typer.Option("--command", help="The whole command, to paste into a shell.")] = False,
) -> None:
    """Print the overrides that `drl run` gives to the trainer, one a line."""
    job = plan.rooted(console.loaded(job_file, assignments).job, str(job_file.resolve().parent))
    place = plan.one_machine(job, str(runs.resolve()))
    console.say(shlex.join(plan.command(job, place)) if command else "\n".join(plan.overrides(job, place)))
