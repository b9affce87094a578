"""`drl render`: the trainer's overrides, or the Kubernetes objects, that a job becomes."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from omni_operator import plan
from omni_operator.api import LoadedJob

from . import console
from .options import (
    CLUSTER_ONLY,
    PLACEHOLDER_IMAGE,
    Assignments,
    Cluster,
    ClusterView,
    Image,
    JobFile,
    Json,
    Runs,
    Settings,
    cluster_view,
    job_folder,
)


def render(
    context: typer.Context,
    job_file: JobFile,
    runs: Runs = Path("runs"),
    assignments: Assignments = None,
    command: Annotated[bool, typer.Option("--command", help="Print the whole command, for a shell.")] = False,
    as_json: Json = False,
    cluster: Cluster = False,
    settings: Settings = None,
    image: Image = None,
) -> None:
    """Print what a job becomes: overrides, or Kubernetes objects.

    Example: drl render job.yaml --cluster

    Without --cluster, prints the overrides that the trainer gets, one per line. With --cluster, prints the objects
    that the operator applies for the first attempt.
    """
    if cluster:
        console.refuse_given(context, ("runs", "command"), "with --cluster")
    else:
        console.refuse_given(context, ("settings", "image"), CLUSTER_ONLY)
    if as_json:
        console.refuse_given(context, ("command",), "with --json, which prints overrides and command")
    loaded = console.load_or_refuse(job_file, assignments or ())
    if cluster:
        if loaded.job.spec.runtime.image:
            console.refuse_given(
                context, ("image",), "because the job names an image; use --set spec.runtime.image=IMAGE"
            )
        _print_objects(loaded, cluster_view(settings, image), as_json=as_json)
    else:
        _print_overrides(loaded, job_folder(job_file), runs, command=command, as_json=as_json)


def _print_overrides(loaded: LoadedJob, folder: Path, runs: Path, *, command: bool, as_json: bool) -> None:
    job = plan.resolve_paths(loaded.job, str(folder))
    layout = plan.local_layout(job, str(runs.resolve()))
    overrides = plan.render_overrides(job, layout)
    arguments = plan.render_command(job, layout)
    if as_json:
        console.say_json({"overrides": overrides, "command": arguments})
    else:
        console.say(shlex.join(arguments) if command else "\n".join(overrides))


def _print_objects(loaded: LoadedJob, view: ClusterView, *, as_json: bool) -> None:
    if problems := tuple(view.problems(loaded)):
        console.refuse(console.format_problems(problems))
    objects = plan.render_objects(loaded.job, 1, view.settings)
    if view.lacks_image(loaded):
        console.note(
            f"{PLACEHOLDER_IMAGE} is a placeholder, because neither the job nor an option names an image; "
            "set spec.runtime.image, or pass --image or --settings"
        )
        if not as_json:
            console.say(f"# {PLACEHOLDER_IMAGE} is a placeholder: replace it before you apply this.")
    for warning in view.warnings(loaded):
        console.note(warning)
    if as_json:
        console.say_json({"apiVersion": "v1", "kind": "List", "items": objects})
    else:
        typer.echo(plan.dump_yaml(*objects), nl=False)
