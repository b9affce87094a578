"""A file -> a job; every problem at once, each with file, line and the nearest valid name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from .job import DiffusionRLJob
from .validation_messages import describe_errors
from .yaml_document import Document, JobError, Problem

__all__ = ["JobError", "LoadedJob", "Problem", "load_job", "read_job"]


@dataclass(frozen=True, slots=True)
class LoadedJob:
    """A job and the document it was read from, which knows the lines."""

    job: DiffusionRLJob
    document: Document


def load_job(path: Path, assignments: Sequence[str] = ()) -> LoadedJob:
    """Read a job.

    Args:
        assignments: `spec.field=value` each; they replace what the file says.

    Raises:
        JobError: the file cannot be read or is not a valid job.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise JobError([Problem(str(path), "there is no such file")]) from error
    except UnicodeDecodeError as error:
        raise JobError([Problem(str(path), "is not a text in UTF-8")]) from error
    except OSError as error:
        raise JobError([Problem(str(path), f"cannot be read: {error.strerror}")]) from error
    return read_job(text, str(path), assignments)


def read_job(text: str, source: str, assignments: Sequence[str] = ()) -> LoadedJob:
    """Like `load_job`, from a text; `source` is what messages call it."""
    document = Document.parse(text, source)
    for assignment in assignments:
        document.assign(assignment)
    try:
        job = DiffusionRLJob.model_validate(document.plain())
    except ValidationError as error:
        found = [Problem(document.where(at), words) for at, words in describe_errors(error, DiffusionRLJob)]
        raise JobError(sorted(found, key=_line)) from error
    return LoadedJob(job, document)


def _line(problem: Problem) -> int:
    last = problem.where.rpartition(":")[2]
    return int(last) if last.isdigit() else -1
