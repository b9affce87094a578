"""`drl validate`: whether jobs are right, without a cluster and without the training stack."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from omni_operator.api import JobError, load_job

from . import console


def validate(
    jobs: Annotated[list[Path], typer.Argument(help="Files with a DiffusionRLJob each.", metavar="JOB.yaml...")],
) -> None:
    """Check jobs offline: every problem with file, line and the nearest valid name."""
    wrong = 0
    for path in jobs:
        try:
            job = load_job(path).job
        except JobError as error:
            wrong += 1
            typer.echo(console.report(error.problems), err=True)
        else:
            console.say(f"{path}: {job.metadata.name} is valid")
    if wrong:
        raise typer.Exit(console.USAGE)
