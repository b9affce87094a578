"""Options that several commands share, and the settings of a cluster."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from omni_operator import plan
from omni_operator.api import JobError, LoadedJob
from omni_operator.api.base import Violation
from omni_operator.api.files.job_loader import read_text, source_name
from omni_operator.api.files.yaml_document import Document, Problem
from omni_operator.api.spec.pods import IMAGE_NAME, LONGEST_IMAGE_NAME
from omni_operator.api.validation_messages import describe_errors, format_path

from . import console

PLACEHOLDER_IMAGE = "example.com/omni-rollout:replace-me"
CLUSTER_ONLY = "without --cluster"
NO_IMAGE = "no image given: the operator must have a default image (jobs.image of the chart)"

JobFile = Annotated[Path, typer.Argument(help="File with a DiffusionRLJob; - is standard input.", metavar="JOB.yaml")]
Runs = Annotated[Path, typer.Option("--runs", help="Folder that contains the run folders.", metavar="DIR")]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="Replace a value of the job, e.g. spec.trainer.totalSteps=10. Repeatable.", metavar="FIELD=VALUE"
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON to standard output.")]
Cluster = Annotated[bool, typer.Option("--cluster", help="For a cluster instead of this machine.")]
Settings = Annotated[
    Path | None,
    typer.Option(
        "--settings",
        help="With --cluster: file with the operator's settings: image, rayVersion, resourceNames, podPolicy "
        "(docs/reference/cli.md).",
        metavar="FILE.yaml",
    ),
]


def check_image(name: str | None) -> str | None:
    """The value of an option that names an image.

    Raises:
        typer.BadParameter: no image can have the name.
    """
    if name is not None and (len(name) > LONGEST_IMAGE_NAME or not re.fullmatch(IMAGE_NAME, name)):
        raise typer.BadParameter(f"{name!r} is not the name of an image: write REGISTRY/NAME:TAG")
    return name


Image = Annotated[
    str | None,
    typer.Option(
        "--image", help="With --cluster: image of jobs that name none.", metavar="IMAGE", callback=check_image
    ),
]


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The operator's settings as far as the options state them.

    Attributes:
        placeholder: whether the image is a placeholder, because no option names one.
    """

    settings: plan.ClusterSettings
    placeholder: bool

    def problems(self, loaded: LoadedJob) -> Iterator[Problem]:
        """Why the cluster would refuse the job."""
        return _located(loaded, plan.find_refusals(loaded.job, self.settings))

    def policy_problems(self, loaded: LoadedJob) -> Iterator[Problem]:
        """Why the operator's pod policy would refuse the job."""
        from omni_operator.plan.pod_refusals import find_policy_refusals

        return _located(loaded, find_policy_refusals(loaded.job, self.settings))

    def warnings(self, loaded: LoadedJob) -> list[str]:
        """What the author should know before the job runs on a cluster."""
        return [f"{format_path(warning.at)} {warning.text}" for warning in plan.find_warnings(loaded.job)]

    def notes(self, loaded: LoadedJob) -> list[str]:
        """The warnings, and that no option names the image."""
        return [*([NO_IMAGE] if self.lacks_image(loaded) else ()), *self.warnings(loaded)]

    def lacks_image(self, loaded: LoadedJob) -> bool:
        """Whether the job would run the operator's default image, which no option names."""
        return self.placeholder and loaded.job.spec.runtime.image is None


def _located(loaded: LoadedJob, violations: Iterable[Violation]) -> Iterator[Problem]:
    for violation in violations:
        yield Problem(loaded.document.where(violation.at), violation.text, format_path(violation.at))


def cluster_view(path: Path | None, image: str | None) -> ClusterView:
    """The operator's settings from a file and an image; on errors print them and exit."""
    try:
        settings = read_settings(path) if path else plan.ClusterSettings(image=PLACEHOLDER_IMAGE)
    except JobError as error:
        console.refuse(console.format_problems(error.problems))
    if image:
        settings = settings.model_copy(update={"image": image})
    return ClusterView(settings, placeholder=path is None and image is None)


def read_settings(path: Path) -> plan.ClusterSettings:
    """Read a file of operator settings.

    Raises:
        JobError: the file cannot be read or is not valid.
    """
    document = Document.parse(read_text(path, "settings"), source_name(path))
    try:
        return plan.ClusterSettings.model_validate(document.plain())
    except ValidationError as error:
        problems = [
            Problem(document.where(at), text, format_path(at))
            for at, text in describe_errors(error, plan.ClusterSettings)
        ]
        raise JobError(problems) from error


def job_folder(path: Path) -> Path:
    """Where the relative paths of a job start: the folder of its file, or the working directory for `-`."""
    return path.resolve().parent
