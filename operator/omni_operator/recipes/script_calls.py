"""PURE: commands of a shell script that run another script, and what they set for it."""

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from .shell_variables import ASSIGNMENT, MARK

_SHELLS = ("bash", "sh")
_SHELL_TEXT = re.compile(r"-\w*c\w*")  # `bash -c`, `bash -lc`
_SHELL_OPTION = re.compile(r"[-+]\w*o")  # `-o pipefail`, `-euo pipefail`
_IN_FRONT = ("exec", "nohup", "setsid", "command", "env")  # words that may precede the path of a script
_MODULE_OPTION = re.compile(r"-\w*m|--module")  # in front of a module that a program runs


class RecipeError(ValueError):
    """A file that does not start the trainer, or starts another one."""


@dataclass(frozen=True, slots=True)
class OtherScript:
    """A script that another one calls."""

    path: str
    text: str


# Finds a script by its path as the command has it, without what is not known at its beginning, and by the path of the
# script that calls it, which is empty for the recipe.
FindScript = Callable[[str, str], OtherScript | None]


@dataclass(frozen=True, slots=True)
class ScriptCall:
    """The call of a script: its path, or for `bash -c` its text, and the words in front of it."""

    front: Sequence[str]
    script: str
    is_text: bool
    arguments: Sequence[str]


def find_script(words: Sequence[str]) -> ScriptCall | None:
    """The script that a command runs."""
    shell = next((index for index, word in enumerate(words) if word.rpartition("/")[2] in _SHELLS), len(words))
    front = words[:shell]
    remaining = list(words[shell + 1 :])
    is_text = False
    if shell == len(words):
        first = next((n for n, word in enumerate(words) if word not in _IN_FRONT and not ASSIGNMENT.match(word)), shell)
        first = words.index("--") + 1 if "--" in words else first
        front = words[:first]
        remaining = list(words[first:])
        if not remaining or not remaining[0].endswith(".sh"):
            return None
    else:
        while remaining and remaining[0][:1] in ("-", "+"):
            option, *remaining = remaining
            is_text = is_text or _SHELL_TEXT.fullmatch(option) is not None
            del remaining[: _SHELL_OPTION.fullmatch(option) is not None]
    if not remaining:
        return None
    return ScriptCall(front, remaining[0], is_text, remaining[2 if is_text else 1 :])  # `bash -c TEXT NAME ARGUMENT…`


def runs_module(word: str) -> bool:
    """Whether the next word may be a module that is run: `python3 -m`, or a variable that is not known."""
    return MARK in word or _MODULE_OPTION.fullmatch(word) is not None


def variables_set_by(words: Sequence[str]) -> Iterator[str]:
    """Environment variables that a command before the trainer's, `env` or `ray job submit`, sets for it.

    A runtime environment file, whose content is unknown, gives a text that names the file.
    """
    if words[:1] == ["env"]:
        yield from (match["name"] for word in words if (match := ASSIGNMENT.match(word)))
    for word, following in zip_longest(words, words[1:], fillvalue=""):
        option, is_joined, value = word.partition("=")
        text = value if is_joined else following
        if option == "--runtime-env":
            yield f"all in {text.replace(MARK, '')}"
        elif option == "--runtime-env-json":
            with contextlib.suppress(ValueError, AttributeError):  # a variable of the script, or a mistake
                yield from json.loads(text).get("env_vars", {})
