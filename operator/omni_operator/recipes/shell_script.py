"""PURE: the call of a trainer in a shell script.

Read is what recipes are made of: variables, arrays, quotes, comments, continued lines. Nothing is run, so the output of
other programs stays as it is written, and is named.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

MODULE = "verl_omni.trainer.main_diffusion"
# Entry points, each with the settings that it stands for.
ENTRY_POINTS: dict[str, tuple[str, ...]] = {"main_diffusion": (), "main_diffusion_v1": ("trainer.use_v1=true",)}
_SEPARATORS = "();<>|&\n"
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$\{(\w+)(?::?-([^{}]*))?\}|\$([A-Za-z_]\w*|\d)")
_UNKNOWN = re.compile(r"\$\{\w+\}|\$\w+|\$\(.*\)|`.*`")  # not Hydra's ${group.setting}
_ARRAY = re.compile(r"\$\{([A-Za-z_]\w*)\[[@*]\]\}")
_TRAINER = re.compile(r"(?:[A-Za-z_]\w*\.)*(main_\w+)|(?:.*/)?(main_\w+)\.py")
_ARGUMENTS = ("$@", "$*", "${@}", "${@:1}")  # of the script itself


class RecipeError(ValueError):
    """A script that does not start the trainer, or starts another one."""


@dataclass(frozen=True, slots=True)
class TrainerCall:
    """Arguments of the trainer.

    Attributes:
        arguments: as the shell would pass them, except for what is in `unknown`.
        unknown: variables without a value, and commands whose output is not known.
    """

    arguments: tuple[str, ...]
    unknown: tuple[str, ...] = ()


def read_script(text: str) -> TrainerCall:
    """Find the call of the trainer, and expand the script's variables in it.

    Raises:
        RecipeError: there is no call, more than one, or one of another trainer; or a quote is not closed.
    """
    variables: dict[str, list[str]] = {}
    calls = []
    for statement in _statements(text):
        words = [word for raw in statement for word in _expanded(raw, variables)]
        if not words or _assign(words, variables):
            continue
        for place, word in enumerate(words):
            if not (match := _TRAINER.fullmatch(word)):
                continue
            implied = ENTRY_POINTS.get(match[1] or match[2])
            if implied is None:
                raise RecipeError(f"the script starts {word}; only {MODULE} and {MODULE}_v1 are supported")
            calls.append([*implied, *words[place + 1 :]])
            break
    if not calls:
        raise RecipeError(f"the script does not start {MODULE}")
    if len(calls) > 1:
        raise RecipeError(f"the script starts the trainer {len(calls)} times; keep one call")
    unknown = [match[0] for word in calls[0] for match in _UNKNOWN.finditer(word)]
    return TrainerCall(tuple(calls[0]), tuple(dict.fromkeys(unknown)))


def _statements(text: str) -> Iterator[list[str]]:
    """Words of each statement; an array is one statement that begins with `NAME=(`."""
    lines = ["" if line.lstrip().startswith("#") else line for line in text.replace("\\\n", " ").splitlines()]
    lexer = shlex.shlex("\n".join(lines), posix=True, punctuation_chars=_SEPARATORS)
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    try:
        words = list(lexer)
    except ValueError as error:
        raise RecipeError(f"not a shell script: {str(error).lower()}") from error
    statement: list[str] = []
    output, in_array, in_comment = 0, False, False  # output: parentheses of a command whose output is used
    for word in words:
        if not word or not set(word) <= set(_SEPARATORS):
            in_comment = in_comment or word.startswith("#")
            if not (in_comment or output):
                statement.append(word)
            continue
        for letter in word:
            if letter == "(" and (output or (statement and statement[-1].endswith("$"))):
                output += 1
            elif letter == ")" and output:
                output -= 1
                if not output:
                    statement[-1] += "(...)"
            elif letter == "(" and statement and statement[-1].endswith("="):
                statement[-1] += "("
                in_array = True
            elif letter == ")" or (letter in ";&|\n" and not in_array and not output):
                yield statement
                statement, in_array = [], False
            in_comment = in_comment and letter != "\n"
    yield statement


def _expanded(word: str, variables: dict[str, list[str]]) -> Iterator[str]:
    """The words that a word becomes: none for the script's own arguments, several for an array."""
    if word in _ARGUMENTS:
        return
    if array := _ARRAY.fullmatch(word):
        yield from variables.get(array[1], [word])
        return
    yield _VARIABLE.sub(lambda match: _value(match, variables), word)


def _value(match: re.Match[str], variables: dict[str, list[str]]) -> str:
    name, default = match[1] or match[3], match[2]
    if name in variables:
        return " ".join(variables[name])
    return match[0] if default is None else _VARIABLE.sub(lambda inner: _value(inner, variables), default)


def _assign(words: Sequence[str], variables: dict[str, list[str]]) -> bool:
    """Keep the variables that a statement sets; whether it does nothing else."""
    rest = list(words[1:] if words[0] in ("export", "declare", "local", "readonly") else words)
    match = _ASSIGNMENT.fullmatch(rest[0]) if rest else None
    if match is None:
        return False
    if match[2] == "(":
        variables[match[1]] = rest[1:]
        return True
    values = [_ASSIGNMENT.fullmatch(word) for word in rest]
    if not all(values):  # NAME=value in front of a command
        return False
    variables.update({each[1]: [each[2]] for each in values if each})
    return True
