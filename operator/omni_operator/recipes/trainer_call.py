"""PURE: the call of a trainer in a shell script."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from .script_calls import FindScript, RecipeError
from .shell_script import MODULE, Script
from .shell_variables import MARK

# No command of a shell begins so: a key with a colon, a list, the start of a document, a template.
_YAML = re.compile(
    r"""(?:\s|\#[^\n]*\n)*(?:---|%YAML|\{\{|-[ ]|\{\s*"|["']?[A-Za-z_][\w./-]*["']?:(?:\s|\Z))""", re.VERBOSE
)
_UNKNOWN = re.compile(r"\0([^\0]*)\0|(\$\{\w+\}|\$\w+)")  # `\$NAME` and '$NAME' too, which nothing replaces


@dataclass(frozen=True, slots=True)
class TrainerCall:
    """Arguments of the trainer.

    Attributes:
        arguments: as the shell would pass them, except for what is in `unknown` and `conditional`.
        unknown: variables without a value, and commands whose output is not known.
        conditional: variables that a condition or a loop of the script sets, each with the line that does.
        environment: names of environment variables that the script sets for the trainer, and does not read itself.
        read: paths of the other scripts that were read.
        missing: other scripts that are read into the script, and were not found.
    """

    arguments: tuple[str, ...]
    unknown: tuple[str, ...] = ()
    conditional: tuple[tuple[str, str], ...] = ()
    environment: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


def read_script(text: str, find: FindScript = lambda path, caller: None) -> TrainerCall:
    """Find the call of the trainer in a script, and expand the script's variables in it.

    Args:
        find: finds the scripts that it calls.

    Raises:
        RecipeError: there is no call, several that differ, or one of another trainer; a quote is not closed; or it is
            YAML.
    """
    if _YAML.match(text):
        raise RecipeError("not a shell script: copy the command that starts the trainer into one")
    script = Script(find)
    script.run_recipe(text)
    if not script.calls:
        started = f"the script does not start {MODULE}"
        if line := _line_that_names("main_diffusion", text):
            started += f"; line {line} names it, but in a text or where it does not run: copy it into a separate script"
        raise RecipeError(started + "".join(f"; {path}, which it calls, was not found" for path in script.not_found))
    calls = list(dict.fromkeys(map(tuple, script.calls)))
    if len(calls) > 1:
        raise RecipeError(f"the script starts the trainer {len(script.calls)} times; keep one call")
    arguments = calls[0]
    unknown = [match[1] or match[2] for word in arguments for match in _UNKNOWN.finditer(word)]
    names = dict.fromkeys(unknown)
    conditional = script.variables.conditional
    return TrainerCall(
        tuple(word.replace(MARK, "") for word in arguments),
        tuple(name for name in names if name not in conditional),
        tuple((name, script.place(conditional[name])) for name in names if name in conditional),
        tuple(name for name in script.environment if not _is_read(name, script.texts)),
        tuple(script.read),
        tuple(script.not_sourced),
    )


def _is_read(name: str, texts: Sequence[str]) -> bool:
    """Whether a script reads a variable, other than for its own default: `export NAME=${NAME:-value}`."""
    without_defaults = (re.sub(rf"\b{re.escape(name)}=\S*", "", text) for text in texts)
    return any(re.search(rf"\$\{{?{re.escape(name)}\b", text) for text in without_defaults)


def _line_that_names(program: str, text: str) -> int | None:
    """The first line with the name of a program, which is no comment."""
    lines = enumerate(text.splitlines(), 1)
    return next((number for number, line in lines if program in line.partition("#")[0]), None)
