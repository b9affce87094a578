"""Options of commands that look at a job as a cluster would."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from omni_operator import plan
from omni_operator.api import JobError, LoadedJob
from omni_operator.api.validation_messages import describe_errors, format_path
from omni_operator.api.yaml_document import Document, Problem

from . import console

Cluster = Annotated[bool, typer.Option("--cluster", help="As on a cluster, not on this machine.")]
Settings = Annotated[
    Path | None, typer.Option("--settings", help="With --cluster: the operator's settings.", metavar="FILE.yaml")
]
Image = Annotated[str | None, typer.Option("--image", help="With --cluster: of jobs that name none.", metavar="IMAGE")]


def settings_of(path: Path | None, image: str | None) -> plan.ClusterSettings:
    """The operator's settings from a file; on problems say all of them and end."""
    try:
        given = read_settings(path) if path else plan.ClusterSettings()
    except JobError as error:
        console.refuse(console.report(error.problems))
    return given.model_copy(update={"image": image}) if image else given


def read_settings(path: Path) -> plan.ClusterSettings:
    """Read a file of settings.

    Raises:
        JobError: it cannot be read, or something in it is wrong.
    """
    try:
        document = Document.parse(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise JobError([Problem(str(path), f"cannot be read: {error}")]) from error
    try:
        return plan.ClusterSettings.model_validate(document.plain())
    except ValidationError as error:
        found = [
            Problem(document.where(at), text, format_path(at))
            for at, text in describe_errors(error, plan.ClusterSettings)
        ]
        raise JobError(found) from error


def refused(loaded: LoadedJob, settings: plan.ClusterSettings) -> Iterator[Problem]:
    """Why the cluster would not run the job, and where the job says so."""
    for violation in plan.find_refusals(loaded.job, settings):
        yield Problem(loaded.document.where(violation.at), violation.text, format_path(violation.at))


def must_be_possible(loaded: LoadedJob, settings: plan.ClusterSettings) -> None:
    """Say why the cluster would not run the job, and end; or do nothing."""
    if found := tuple(refused(loaded, settings)):
        console.refuse(console.report(found))
