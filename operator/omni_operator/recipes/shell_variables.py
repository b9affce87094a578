"""PURE: variables of a shell script, the words that they make, and tests that depend on them alone."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from .shell_words import Arithmetic, Output, Parameter, Part, Text, Word

ASSIGNMENT = re.compile(r"(?P<name>[A-Za-z_]\w*)(?P<index>\[[^\]]*\])?(?P<add>\+?)=")
MARK = "\0"  # around an expansion that is not known; the script has none
_BLANKS = re.compile(r"[ \t\n]+(?=(?:[^\0]*\0[^\0]*\0)*[^\0]*\Z)")  # outside of marks
_NUMBER = re.compile(r"-?(0|[1-9]\d*)")
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


@dataclass(frozen=True, slots=True)
class Value:
    """Elements of an array, or one text.

    Attributes:
        place: the line where it is set, as messages call it.
        certain: whether this is all. If not, further elements may follow, or the text may be another one.
    """

    elements: tuple[str, ...]
    place: str
    certain: bool = True


@dataclass(slots=True)
class Variables:
    """Variables at one place of a script.

    Attributes:
        values: by name. `@` are the arguments of the function that runs; those of the script are taken as none.
        conditional: lines of assignments under conditions, by the expansion that is not known because of them.
        place: the line of the command that runs.
    """

    values: dict[str, Value]
    conditional: dict[str, str]
    place: str = ""

    def forget(self, names: Iterable[str]) -> None:
        """Something sets these variables to what is not known."""
        self.values |= {name: Value((), self.place, certain=False) for name in names}

    def assign(self, word: Word) -> None:
        """Do what `NAME=text`, `NAME+=text` or `NAME=(…)` does; a word of `export` may also have no value."""
        match = ASSIGNMENT.match(word.source)
        if match is None:
            name, is_set, text = self.text(word.parts).partition("=")
            if is_set:
                self.values[name] = Value((text,), self.place)
            return
        old = self.values.get(match["name"]) if match["add"] else None
        elements, certain = ((), True) if old is None else (old.elements, old.certain)
        if match["index"]:
            certain = False
        elif certain and word.array is not None:
            elements = (*elements, *(each for added in word.array for each in self.fields(added)))
        elif certain:
            elements = ("".join(elements[:1]) + self.text(word.parts)[match.end() :], *elements[1:])
        self.values[match["name"]] = Value(elements, self.place, certain)

    def shift(self, count: int) -> None:
        """Drop the first arguments of the function that runs."""
        if (value := self.values.get("@")) is not None:
            self.values["@"] = Value(value.elements[count:] if value.certain else (), self.place, value.certain)

    def fields(self, word: Word) -> list[str]:
        """The words that a word becomes: none for arguments that are not known, several for an array."""
        fields: list[str] = []
        current: str | None = None
        for part in self._chosen(word.parts):
            for place, value in enumerate(self._expanded(part)):
                for number, piece in enumerate([value] if part.quoted else _BLANKS.split(value)):
                    if (place or number) and current is not None:
                        fields.append(current)
                        current = None
                    if part.quoted or piece:
                        current = (current or "") + piece
        return fields if current is None else [*fields, current]

    def text(self, parts: Sequence[Part]) -> str:
        """The parts as one text."""
        return "".join(" ".join(self._expanded(part)) for part in self._chosen(parts))

    def _chosen(self, parts: Sequence[Part]) -> Iterator[Part]:
        """The parts, with the argument instead of a parameter where `${NAME:-argument}` means it."""
        for part in parts:
            argument = self._argument(part) if isinstance(part, Parameter) else None
            if argument == () and part.quoted and isinstance(part, Parameter) and not part.is_array:
                yield Text("")  # "${NAME:-}" is an empty word, and ${NAME:-} none
            else:
                yield from (part,) if argument is None else self._chosen(argument)

    def _argument(self, part: Parameter) -> Sequence[Part] | None:
        operator = part.operator.lstrip(":")
        if operator not in ("-", "=", "+"):
            return None
        value = self._found(part)
        if not (value is None or value.certain):
            return None
        is_missing = value is None or not (any(value.elements) if ":" in part.operator else value.elements)
        if operator == "+":
            return () if is_missing else part.argument
        if is_missing and operator == "=":
            self.values[part.name] = Value((self.text(part.argument),), self.place)
        return part.argument if is_missing else None

    def _found(self, part: Parameter) -> Value | None:
        """What a parameter stands for; None if nothing sets it."""
        is_place = part.name.isdigit() and part.name != "0"
        value = self.values.get("@" if is_place or part.name == "*" else part.name)
        if value is None or not value.certain or part.is_array:
            return value
        place = int(part.name) - 1 if is_place else int(part.index or 0)
        return Value(value.elements[place : place + 1], value.place)

    def _expanded(self, part: Part) -> list[str]:
        unknown = MARK + part.source + MARK
        match part:
            case Text():
                return [part.source]
            case Output():
                return [unknown]
            case Arithmetic():
                try:
                    tree = ast.parse(self.text(part.expression).strip(), mode="eval")
                    return [str(_integer(tree.body, self.values))]
                except (ArithmeticError, SyntaxError, ValueError):
                    return [unknown]
            case Parameter():
                if part.name == "#" and part.source in ("$#", "${#}"):
                    arguments = self.values.get("@", Value((), self.place))
                    return [str(len(arguments.elements)) if arguments.certain else unknown]
                value = None if part.operator == "other" else self._found(part)
                if value is None:
                    return [] if part.name in ("@", "*") and "@" not in self.values else [unknown]
                if not value.certain:
                    self.conditional[part.source] = value.place
                    return [*(value.elements if part.is_array and not part.operator else ()), unknown]
                is_missing = not any(value.elements) if ":" in part.operator else not value.elements
                if "?" in part.operator and is_missing:
                    return [unknown]
                joined = not part.is_array or (part.quoted and "*" in (part.name, part.index))
                return [" ".join(value.elements)] if joined else list(value.elements)


def merge_ways(ends: Sequence[Mapping[str, Value]]) -> dict[str, Value]:
    """Variables after one of several ways through a script; certain is what all ways have in common."""
    merged = {}
    for name in dict.fromkeys(name for values in ends for name in values):
        ways = [values.get(name, Value((), "", certain=False)) for values in ends]
        last = next((value for value in reversed(ways) if value != ways[0]), ways[0])
        certain = all(value.certain and value.elements == last.elements for value in ways)
        columns = zip(*(value.elements for value in ways), strict=False)
        common = tuple(element for element, *_ in takewhile(lambda column: len({*column}) == 1, columns))
        merged[name] = Value(common, last.place or ways[0].place, certain)
    return merged


def _integer(node: ast.expr, variables: Mapping[str, Value]) -> int:
    """The value of an expression of the shell.

    Raises:
        ArithmeticError: it has another operator, a variable that is no known number, or divides by zero.
    """
    match node:
        case ast.Constant(value=int(number)) if type(number) is int:  # `True` is a name in the shell
            return number
        case ast.Name(id=name) if name in variables and variables[name].certain:
            text = "".join(variables[name].elements[:1])
            if _NUMBER.fullmatch(text):
                return int(text)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_integer(operand, variables)
        case ast.BinOp(left=left, op=sign, right=right):
            first = _integer(left, variables)
            second = _integer(right, variables)
            if isinstance(sign, ast.Add | ast.Sub | ast.Mult):
                return {ast.Add: first + second, ast.Sub: first - second, ast.Mult: first * second}[type(sign)]
            if isinstance(sign, ast.Div | ast.Mod):
                quotient = abs(first) // abs(second) * (1 if (first < 0) == (second < 0) else -1)  # towards zero
                return quotient if isinstance(sign, ast.Div) else first - quotient * second
        case _:
            pass
    raise ArithmeticError


def evaluate_test(words: Sequence[str]) -> bool | None:
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
        case [text] if not patterns:  # of `[[ a < b ]]` the scanner leaves one word
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
