"""`drl validate`: what the API server would say, without one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from omni_operator.cli.common import USAGE_ERROR, errors, job_or_exit
from omni_operator.plan.overrides import ReservedOverride, overrides


def validate(files: Annotated[list[Path], typer.Argument(help="Jobs to check.")]) -> None:
    """Check jobs offline; errors come with file, line and the nearest valid name."""
    for path in files:
        job = job_or_exit(path)
        try:
            overrides(job, folder=path.parent, run="runs")
        except ReservedOverride as error:
            errors.print(f"{path}: {error}", markup=False)
            raise typer.Exit(USAGE_ERROR) from error
        typer.echo(f"{path}: ok ({job.metadata.name})")
