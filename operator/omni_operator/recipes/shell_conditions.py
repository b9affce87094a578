"""PURE: conditions of a shell script, as far as they depend on nothing but its variables."""

import operator
import re
from collections.abc import Callable, Mapping, Sequence

from .shell_variables import MARK

TESTS: Mapping[str, str | None] = {"[": "]", "[[": "]]", "test": None}  # commands, each with its last word
_INTEGER = re.compile(r"[-+]?\d+")
_NUMBERS: Mapping[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-gt": operator.gt,
    "-ge": operator.ge,
    "-lt": operator.lt,
    "-le": operator.le,
}
_TEXTS: Mapping[str, Callable[[str, str], bool]] = {"=": operator.eq, "==": operator.eq, "!=": operator.ne}


def evaluate(words: Sequence[str]) -> bool | None:
    """Whether `[ … ]`, `[[ … ]]` or `test …` succeeds.

    None if that is not known: a variable has no known value, the test is about files, or a text may be a pattern.
    """
    command, *operands = words
    if (last := TESTS[command]) is not None:
        if operands[-1:] != [last]:
            return None
        del operands[-1]
    if any(MARK in word for word in operands):
        return None
    return _result(operands, patterns=command == "[[")


def _result(operands: Sequence[str], *, patterns: bool) -> bool | None:
    match operands:
        case ["!", *rest] if rest:
            inner = _result(rest, patterns=patterns)
            return None if inner is None else not inner
        case [text] if not patterns:  # the scanner leaves one word of `[[ a < b ]]`
            return bool(text)
        case ["-n" | "-z" as kind, text]:
            return bool(text) == (kind == "-n")
        case [left, comparison, right] if comparison in _TEXTS:
            is_pattern = patterns and not {*"*?["}.isdisjoint(right)
            return None if is_pattern else _TEXTS[comparison](left, right)
        case [left, comparison, right] if comparison in _NUMBERS and all(map(_INTEGER.fullmatch, (left, right))):
            return _NUMBERS[comparison](int(left), int(right))
        case _:
            return None
