"""`drl validate`: check jobs without running them, without a cluster and without the training stack."""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from omni_operator import plan
from omni_operator.api import JobError, LoadedJob, load_job
from omni_operator.api.files.job_loader import source_name
from omni_operator.api.files.yaml_document import Problem
from omni_operator.api.validation_messages import format_path

from . import console
from .local import preflight
from .options import CLUSTER_ONLY, Assignments, Cluster, ClusterView, Image, Json, Settings, cluster_view, job_folder


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result for one file.

    Attributes:
        name: name of the job; None if it cannot be read.
        has_image: whether the job names an image.
    """

    file: str
    name: str | None
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()
    has_image: bool = False


def validate(
    context: typer.Context,
    jobs: Annotated[
        list[Path], typer.Argument(help="Files with a DiffusionRLJob each; - is standard input.", metavar="JOB.yaml")
    ],
    assignments: Assignments = None,
    as_json: Json = False,
    cluster: Cluster = False,
    settings: Settings = None,
    image: Image = None,
) -> None:
    """Check jobs without running them.

    Example: drl validate job.yaml

    Prints every problem with file, line, field and, for a misspelt name, the nearest valid one. Without --cluster,
    model, prompts and reward functions must exist on this machine. With --cluster, checks what the operator would
    refuse instead.
    """
    if not cluster:
        console.refuse_given(context, ("settings", "image"), CLUSTER_ONLY)
    if assignments and len(jobs) > 1:
        console.refuse("--set is for one job; give the others in another command")
    if len(set(jobs)) < len(jobs):
        console.refuse("a file is named twice")
    view = cluster_view(settings, image) if cluster else None
    verdicts = [_check(path, assignments or (), view) for path in jobs]
    if all(verdict.has_image for verdict in verdicts):
        console.refuse_given(context, ("image",), "because every job names an image")
    if as_json:
        console.say_json(_document(verdicts))
    else:
        _print(verdicts)
    if any(verdict.problems for verdict in verdicts):
        raise typer.Exit(console.USAGE)


def _check(path: Path, assignments: Sequence[str], view: ClusterView | None) -> Verdict:
    try:
        loaded = load_job(path, assignments)
    except JobError as error:
        return Verdict(source_name(path), None, error.problems)
    job = loaded.job
    problems = tuple(view.problems(loaded) if view else _local_problems(loaded, path))
    risks = (f"{format_path(risk.at)} {risk.text}" for risk in (*plan.find_unused(job), *plan.find_risks(job)))
    notes = (*console.notes_on_file(loaded), *(view.notes(loaded) if view else risks))
    return Verdict(source_name(path), job.metadata.name, problems, notes, has_image=job.spec.runtime.image is not None)


def _local_problems(loaded: LoadedJob, path: Path) -> list[Problem]:
    job = plan.resolve_paths(loaded.job, str(job_folder(path)))
    problems = [
        *preflight.file_problems(job, loaded.document),
        *preflight.variable_problems(job, loaded.document, os.environ),
    ]
    return problems or preflight.input_problems(job, loaded.document)


def _print(verdicts: list[Verdict]) -> None:
    files: dict[str, list[str]] = {}
    for verdict in verdicts:
        if verdict.problems:
            console.complain(console.format_problems(verdict.problems))
            continue
        console.say(f"{verdict.file}: {verdict.name} is valid")
        for text in verdict.notes:
            files.setdefault(text, []).append(verdict.file)
    for text, concerned in files.items():
        console.note(f"{', '.join(concerned)}: {text}")


def _document(verdicts: list[Verdict]) -> dict[str, object]:
    jobs = [
        {
            "file": verdict.file,
            "name": verdict.name,
            "valid": not verdict.problems,
            "problems": [asdict(problem) for problem in verdict.problems],
            "notes": list(verdict.notes),
        }
        for verdict in verdicts
    ]
    return {"valid": all(job["valid"] for job in jobs), "jobs": jobs}
