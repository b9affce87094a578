"""The group of all commands: what can go wrong in every one of them is a line that says what to do."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from pydantic import ValidationError
from typer.core import TyperGroup
from typing_extensions import override

from omni_operator.api.validation_messages import describe_value

from . import console


class Program(TyperGroup):
    """Runs commands; explains a wrong value of an option, a full disk and a working directory that is gone."""

    @override
    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        if sys.stdout is None:  # `>&-`: what is printed would be lost without an error
            console.refuse("standard output is closed: redirect it, e.g. to /dev/null")
        with _explained():
            return super().make_context(*args, **kwargs)

    @override
    def invoke(self, ctx: Any) -> Any:
        try:
            Path.cwd()
        except OSError:
            console.refuse("the working directory does not exist any more: change to another folder")
        console.print_any_text()
        with _explained():
            return super().invoke(ctx)


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except typer.BadParameter as error:
        detail = error.__cause__.errors()[0] if isinstance(error.__cause__, ValidationError) else None
        if detail is not None and detail["msg"] == error.message:  # not the message of an option of ours
            error.message = describe_value(detail)
        raise
    except OSError as error:
        if error.errno not in console.NO_ROOM:
            raise
        _drop_output_without_room()
        console.refuse(f"cannot write{_to(error.filename)}: {error.strerror}", console.FAILED)


def _to(file: str | None) -> str:
    return "" if file is None else f" to {file}"


def _drop_output_without_room() -> None:
    """Discard what standard output could not write: Python would write it once more when it exits."""
    try:
        sys.stdout.flush()
    except OSError:
        console.discard_output()
