"""Root command group; turns common errors into one-line messages."""

import ast
import gc
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typing_extensions import override

from . import console

# Module and function of each command, in the order of docs/reference/cli.md and of the help.
COMMANDS = {
    "init": "init:init",
    "run": "local.run:run",
    "validate": "validate:validate",
    "render": "render:render",
    "fit": "machine.fit:fit",
    "convert": "convert:convert_recipe",
    "report": "report:report",
    "submit": "on_cluster.submit:submit",
    "watch": "on_cluster.watch:watch",
    "logs": "on_cluster.logs:logs",
    "fetch": "on_cluster.fetch:fetch",
    "open": "on_cluster.open_dashboard:open_dashboard",
    "why": "on_cluster.job_commands:why",
    "suspend": "on_cluster.job_commands:suspend",
    "resume": "on_cluster.job_commands:resume",
    "scale": "on_cluster.job_commands:scale",
    "doctor": "machine.doctor:doctor",
}

# Objects that are made before a collection. Python's 700 takes a sixth of the time of a short command.
GARBAGE_THRESHOLD = 100_000


class Commands(Mapping[str, Any]):
    """Commands by name; the module of one is imported when it is looked up, so that `drl --help` imports none.

    Args:
        groups: the groups of commands, which come last.
    """

    def __init__(self, groups: Mapping[str, Any]) -> None:
        self._groups = groups

    @override
    def __getitem__(self, name: str) -> Any:
        if name in self._groups:
            return self._groups[name]
        module, _, function = COMMANDS[name].partition(":")
        alone = typer.Typer(add_completion=False, rich_markup_mode=None)
        alone.command(name)(getattr(import_module(f"{__package__}.{module}"), function))
        return typer.main.get_command(alone)

    @override
    def __iter__(self) -> Iterator[str]:
        return iter([*COMMANDS, *self._groups])

    @override
    def __len__(self) -> int:
        return len(COMMANDS) + len(self._groups)

    def described(self) -> Iterator[tuple[str, Any]]:
        """Each command with its help, read from the source of its module, and without options."""
        for name, target in COMMANDS.items():
            module, _, function = target.partition(":")
            body = ast.parse((Path(__file__).parent / f"{module.replace('.', '/')}.py").read_bytes()).body
            texts = (ast.get_docstring(part) for part in body if getattr(part, "name", None) == function)  # type: ignore[arg-type]
            yield name, TyperCommand(name, help=next(texts))
        yield from self._groups.items()


class Program(TyperGroup):
    """Runs commands; explains a wrong value of an option, a path without rights, a full disk and a missing folder."""

    def __init__(self, *, commands: Mapping[str, Any], **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands: Any = Commands(commands)

    @override
    def format_commands(self, ctx: Any, formatter: Any) -> None:
        described = TyperGroup(name=self.name, commands=dict(self.commands.described()), rich_markup_mode=None)
        described.format_commands(ctx, formatter)

    @override
    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        os.environ.setdefault(*console.NO_PLUGINS)
        gc.set_threshold(GARBAGE_THRESHOLD)
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
        from pydantic import ValidationError

        from omni_operator.api.validation_messages import describe_value

        detail = error.__cause__.errors()[0] if isinstance(error.__cause__, ValidationError) else None
        if detail is not None and detail["msg"] == error.message:  # not the message of an option of ours
            error.message = describe_value(detail)
        raise
    except OSError as error:
        if error.errno in console.UNUSABLE_PATH and error.filename is not None:
            console.refuse(f"cannot use {error.filename}: {error.strerror}")
        if error.errno not in console.NO_ROOM:
            raise
        file = "" if error.filename is None else f" to {error.filename}"
        console.refuse(f"cannot write{file}: {error.strerror}", console.FAILED)
