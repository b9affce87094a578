"""What all commands share: exit codes, error output, refused options."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

if TYPE_CHECKING:
    from omni_operator.api import LoadedJob
    from omni_operator.api.files.yaml_document import Problem

# FAILED: the work failed. USAGE: nothing was started. INTERRUPTED: the user stopped a run.
OK = 0
FAILED = 1
USAGE = 2
INTERRUPTED = 130
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Paths that may not be used, or that no file system has. pathlib's questions raise these instead of answering no.
UNUSABLE_PATH = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG)
# Without this, pydantic looks for plug-ins in all installed distributions: a tenth of the time of a short command.
NO_PLUGINS = ("PYDANTIC_DISABLE_PLUGINS", "__all__")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tab and line feed


def user_environment() -> dict[str, str]:
    """Environment variables for programs that a command starts: without what this program sets for itself."""
    return {name: value for name, value in os.environ.items() if (name, value) != NO_PLUGINS}


def say(text: str) -> None:
    """Print a line to standard output."""
    typer.echo(without_control(text))


def say_json(value: object) -> None:
    """Print a value as JSON to standard output."""
    say(json.dumps(value, indent=2, ensure_ascii=False))


def print_any_text() -> None:
    """Let standard output show characters that its encoding does not have by their numbers, as standard error does.

    A name of a file that is not UTF-8 has such characters too.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def note(text: str) -> None:
    """Print a line to standard error, so that standard output stays machine-readable."""
    typer.echo(f"note: {without_control(text)}", err=True)


def complain(text: str) -> None:
    """Print errors to standard error."""
    typer.echo(without_control(text), err=True)


def refuse(text: str, code: int = USAGE) -> NoReturn:
    """Print an error and exit."""
    complain(text)
    raise typer.Exit(code)


def without_control(text: str) -> str:
    """The text without characters that control a terminal: parts of it may come from a file or pod of another user."""
    return _CONTROL.sub(" ", text)


def refuse_given(context: typer.Context, parameters: Iterable[str], why: str) -> None:
    """Exit if one of these options was given, because it would have no effect.

    Args:
        why: completes the sentence "--option has no effect ...".
    """
    for parameter in context.command.params:
        if parameter.name in parameters and is_given(context, parameter.name):
            refuse(f"{parameter.opts[0]} has no effect {why}")


def is_given(context: typer.Context, parameter: str) -> bool:
    """Whether the user wrote the option, even with its default value."""
    source = context.get_parameter_source(parameter)
    return source is not None and source.name == "COMMANDLINE"


def load_or_refuse(path: Path, assignments: Sequence[str] = ()) -> LoadedJob:
    """Read a job, or print all its problems and exit. Notes what else is in its file."""
    from omni_operator.api import JobError, load_job  # not for `drl --help`, which takes a third of the time without

    try:
        loaded = load_job(path, assignments)
    except JobError as error:
        refuse(format_problems(error.problems))
    for text in notes_on_file(loaded):
        note(f"{loaded.document.source}: {text}")
    return loaded


def notes_on_file(loaded: LoadedJob) -> list[str]:
    """What else is in a job's file."""
    others = loaded.document.others
    return [f"not read, because drl takes the job alone: {', '.join(others)}"] if others else []


def format_problems(problems: Sequence[Problem]) -> str:
    """One line per problem, and their number if there are several."""
    lines = [str(problem) for problem in problems]
    return "\n".join([*lines, f"{len(lines)} problems"] if len(lines) > 1 else lines)


def short_path(path: Path) -> str:
    """The path relative to the working directory if it is inside, else absolute."""
    here = Path.cwd()
    absolute = path.absolute()
    return str(absolute.relative_to(here) if absolute.is_relative_to(here) else absolute)
