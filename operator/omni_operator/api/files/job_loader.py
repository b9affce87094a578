"""Reading jobs from files; an error lists every problem with file, line and the nearest valid name."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from omni_operator.api.base import FieldPath
from omni_operator.api.job import KIND, DiffusionRLJob
from omni_operator.api.validation_messages import describe_errors, format_path, nearest_or_all

from .yaml_document import Document, JobError, Problem, is_index

STDIN = Path("-")
# What Kubernetes has in the metadata of an object; `Metadata` checks the first four.
METADATA_FIELDS = [
    *("name", "namespace", "labels", "annotations", "generateName", "finalizers", "ownerReferences", "managedFields"),
    *("uid", "generation", "resourceVersion", "selfLink"),
    *("creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"),
]
__all__ = ["JobError", "LoadedJob", "Problem", "load_job", "read_job"]


@dataclass(frozen=True, slots=True)
class LoadedJob:
    """A job and the document it was read from, which has the line numbers."""

    job: DiffusionRLJob
    document: Document


def load_job(path: Path, assignments: Sequence[str] = ()) -> LoadedJob:
    """Read a job.

    Args:
        path: a file, or `-` for standard input.
        assignments: `FIELD=VALUE` each, such as `spec.seed=7`, which replace values of the file.

    Raises:
        JobError: the file cannot be read or is not a valid job.
    """
    return read_job(read_text(path, "job"), source_name(path), assignments)


def source_name(path: Path) -> str:
    """What messages call the file."""
    return "<stdin>" if path == STDIN else str(path)


def read_job(text: str, source: str, assignments: Sequence[str] = ()) -> LoadedJob:
    """Like `load_job`, from a string; messages call it `source`."""
    document = Document.parse(text, source, KIND)
    for assignment in assignments:
        document.assign(assignment)
    plain = document.plain()
    errors: list[tuple[FieldPath, str]] = []
    try:
        job = DiffusionRLJob.model_validate(plain)
    except ValidationError as error:
        errors += describe_errors(error, DiffusionRLJob)
    errors += _unknown_metadata(plain.get("metadata"))
    if errors:
        problems = [Problem(document.where(at), text, format_path(at)) for at, text in errors]
        raise JobError(sorted(problems, key=_line))
    return LoadedJob(job, document)


def _unknown_metadata(metadata: Any) -> Iterator[tuple[FieldPath, str]]:
    """Misspelt fields; the operator reads jobs of a Kubernetes whose metadata has more."""
    for name in metadata if isinstance(metadata, dict) else ():
        if name not in METADATA_FIELDS:
            yield ("metadata", name), "unknown field" + nearest_or_all(name, METADATA_FIELDS)


def read_text(path: Path, noun: str) -> str:
    """Read a file, or for `-` standard input, as UTF-8.

    Args:
        noun: what messages call the content, e.g. `job`.

    Raises:
        JobError: it cannot be read.
    """
    source = source_name(path)
    if path == STDIN and sys.stdin is None:
        text = f"standard input is closed: name a file, or give the {noun} on standard input"
        raise JobError([Problem(source, text)])
    try:
        return sys.stdin.buffer.read().decode("utf-8") if path == STDIN else path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise JobError([Problem(source, "no such file")]) from error
    except UnicodeDecodeError as error:
        raise JobError([Problem(source, "not a text file in UTF-8")]) from error
    except OSError as error:
        raise JobError([Problem(source, f"cannot be read: {error.strerror}")]) from error


def _line(problem: Problem) -> int:
    last = problem.where.rpartition(":")[2]
    return int(last) if is_index(last) else -1
