"""`drl render`: what a job becomes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from omni_operator.cli.common import USAGE_ERROR, errors, job_or_exit
from omni_operator.plan.overrides import ReservedOverride, overrides


def render(
    file: Annotated[Path, typer.Argument(help="The job.")],
    runs: Annotated[Path, typer.Option(help="Where run folders are.")] = Path("runs"),
) -> None:
    """Print the trainer's settings, one a line, as `drl run` passes them."""
    job = job_or_exit(file)
    try:
        for line in overrides(job, folder=file.parent, run=str(runs / job.metadata.name)):
            typer.echo(line)
    except ReservedOverride as error:
        errors.print(f"{file}: {error}", markup=False)
        raise typer.Exit(USAGE_ERROR) from error
