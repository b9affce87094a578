"""`drl validate`: whether jobs are right, without a cluster and without the training stack."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from omni_operator.api import JobError, load_job

from . import console
from .options import Cluster, Image, Settings, refused, settings_of


def validate(
    jobs: Annotated[list[Path], typer.Argument(help="Files with a DiffusionRLJob each.", metavar="JOB.yaml...")],
    cluster: Cluster = False,
    settings: Settings = None,
    image: Image = None,
) -> None:
    """Check jobs offline: every problem with file, line and the nearest valid name.

    With --cluster also what the operator would refuse for other reasons than the form.
    """
    known = settings_of(settings, image) if cluster else None
    wrong = 0
    for path in jobs:
        try:
            loaded = load_job(path)
            if known and (found := tuple(refused(loaded, known))):
                raise JobError(found)
        except JobError as error:
            wrong += 1
            typer.echo(console.report(error.problems), err=True)
        else:
            console.say(f"{path}: {loaded.job.metadata.name} is valid")
    if wrong:
        raise typer.Exit(console.USAGE)
