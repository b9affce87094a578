"""`drl render`: what a job stands for, on this machine or on a cluster."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from omni_operator import plan
from omni_operator.api import LoadedJob

from . import console
from .options import Cluster, Image, Settings, must_be_possible, settings_of

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
    cluster: Cluster = False,
    settings: Settings = None,
    image: Image = None,
    attempt: Annotated[int, typer.Option(help="With --cluster: of which attempt.", min=1, max=99, metavar="N")] = 1,
) -> None:
    """Print what a job stands for: the trainer's overrides, one a line, or with --cluster every object.

    The objects are those that the operator applies, byte for byte, so they can be looked at, compared and kept.
    """
    loaded = console.loaded(job_file, assignments)
    if cluster:
        typer.echo(_objects(loaded, settings, image, attempt), nl=False)
        return
    job = plan.resolve_paths(loaded.job, str(job_file.resolve().parent))
    layout = plan.local_layout(job, str(runs.resolve()))
    console.say(
        shlex.join(plan.render_command(job, layout)) if command else "\n".join(plan.render_overrides(job, layout))
    )


def _objects(loaded: LoadedJob, settings: Path | None, image: str | None, attempt: int) -> str:
    cluster = settings_of(settings, image)
    must_be_possible(loaded, cluster)
    return plan.dump_yaml(*plan.render_objects(loaded.job, attempt, cluster))
