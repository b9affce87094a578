"""What commands share: exit codes, and how a refusal looks."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import typer

from omni_operator.api import JobError, LoadedJob, load_job
from omni_operator.api.yaml_document import Problem

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130


def say(text: str) -> None:
    """A line for the user."""
    typer.echo(text)


def refuse(text: str, code: int = USAGE) -> NoReturn:
    """Say why nothing was done, and end."""
    typer.echo(text, err=True)
    raise typer.Exit(code)


def loaded(path: Path, assignments: list[str] | None = None) -> LoadedJob:
    """Read a job; on problems say all of them and end with `USAGE`."""
    try:
        return load_job(path, assignments or ())
    except JobError as error:
        refuse(report(error.problems))


def report(problems: tuple[Problem, ...]) -> str:
    """A line a problem and, where there are several, how many."""
    lines = [str(problem) for problem in problems]
    return "\n".join([*lines, f"{len(lines)} problems"] if len(lines) > 1 else lines)
