"""`drl convert`: a recipe of the reference becomes a job."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from omni_operator import plan
from omni_operator.api import JobError, read_job
from omni_operator.api.files.job_loader import STDIN, read_text, source_name
from omni_operator.recipes import Conversion, OtherScript, RecipeError, TrainerCall, convert, read_script

from . import console

_COMMANDS = ("$(", "`")
_NOT_SET = "not set in the script"
_NOT_RUN = "known only when the script runs"
_LOCAL = re.compile(r"https?://(?:localhost|127(?:\.\d{1,3}){3}|0\.0\.0\.0|\[::1\])(?=[:/\"])[^\s\"]*", re.IGNORECASE)


def convert_recipe(
    recipe: Annotated[
        Path,
        typer.Argument(help="Shell script that starts verl-omni's trainer; - is standard input.", metavar="RECIPE"),
    ],
) -> None:
    """Convert a recipe of verl-omni to a job.

    Example: drl convert run_sd35.sh > job.yaml

    Prints the job. Settings without a field become overrides; those that have no effect here, or are not supported,
    are left out and named, on standard error and at the end of the job. The exit code is 1 if a setting is not
    supported or the job is not complete.
    """
    try:
        call = read_script(read_text(recipe, "script"), lambda path, caller: _find_script(path, Path(caller or recipe)))
    except JobError as error:
        console.refuse(console.format_problems(error.problems))
    except RecipeError as error:
        console.refuse(f"{source_name(recipe)}: {error}")
    conversion = convert(call.arguments)
    typer.echo(_text(recipe, conversion), nl=False)
    for line in _read(call):
        console.note(line)
    for line in _left_open(call, tuple(_texts(conversion.document))):
        console.note(line)
    if call.environment:
        console.note(
            f"the script sets environment variables, and a job does not: {', '.join(call.environment)}; set them "
            "before drl run, or as env in the podTemplate of spec.head, spec.trainer and spec.rollout"
        )
    for url in dict.fromkeys(_LOCAL.findall(json.dumps(conversion.document))):
        console.note(f"{url} is in each pod on a cluster: write the server's address there, or run it in these pods")
    if conversion.without_effect:
        console.note(f"left out, because they have no effect here: {', '.join(conversion.without_effect)}")
    for assignment, reason in conversion.refused:
        console.note(f"left out: {assignment}: {reason}")
    problems = _problems(conversion)
    if problems:
        console.complain(problems)
    if problems or conversion.refused:
        raise typer.Exit(console.FAILED)


def _find_script(path: str, caller: Path) -> OtherScript | None:
    """A script that another one calls: in the caller's folder, one above it, or the current one.

    Raises:
        JobError: it cannot be read.
    """
    folder = Path.cwd() if caller == STDIN else caller.absolute().parent
    for candidate in (folder / path, *(above / path for above in folder.parents), Path.cwd() / path):
        if candidate.is_file():
            return OtherScript(str(candidate.resolve()), read_text(candidate, "script"))
    return None


def _read(call: TrainerCall) -> Iterator[str]:
    """A line for the other scripts that were read, and one for those that should have been."""
    if call.read:
        yield f"read too, because the script calls it: {', '.join(call.read)}"
    if call.missing:
        yield f"not found, so that variables which it sets are not known: {', '.join(call.missing)}"


def _left_open(call: TrainerCall, texts: Sequence[str]) -> Iterator[str]:
    """A line for each variable and command of the script whose text is in the job, or would be in its name.

    Assignments that are not in the job are in the lines about what is left out.
    """
    of_name = [argument for argument in call.arguments if argument.lstrip("+").startswith("trainer.experiment_name=")]
    unknown = [(name, f"{name} is {_NOT_RUN if name.startswith(_COMMANDS) else _NOT_SET}") for name in call.unknown]
    conditional = [(name, f"{name} depends on {condition}") for name, condition in call.conditional]
    for name, what in (*unknown, *conditional):
        if any(name in text for text in texts):
            yield f"{what}, and stays in the job as it is: replace it"
        elif any(name in argument for argument in of_name[-1:]):
            yield f"{what}, and is left out of the job's name: give each run its own name"


def _texts(node: object) -> Iterator[str]:
    """All texts of a document."""
    if isinstance(node, str):
        yield node
    elif isinstance(node, Mapping):
        for value in node.values():
            yield from _texts(value)
    elif isinstance(node, list):
        for value in node:
            yield from _texts(value)


def _text(recipe: Path, made: Conversion) -> str:
    source = "standard input" if recipe == STDIN else recipe.name
    lines = [f"# Converted from {source}."]
    if made.refused:
        lines.append("# Not supported here, and left out:")
        lines += [f"#   {assignment}: {reason}".replace("\n", " ") for assignment, reason in made.refused]
    return "\n".join(lines) + "\n" + plan.dump_yaml(made.document)


def _problems(made: Conversion) -> str:
    """Why the job is not valid; empty if it is."""
    try:
        read_job(plan.dump_yaml(made.document), "the job")
    except JobError as error:
        return console.format_problems(error.problems)
    return ""
