"""PURE: variables of a shell script, and the words that they make."""

import ast
import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from .shell_words import Arithmetic, Output, Parameter, Part, Text, Word

ASSIGNMENT = re.compile(r"(?P<name>[A-Za-z_]\w*)(?P<index>\[[^\]]*\])?(?P<add>\+?)=")
MARK = "\0"  # around an expansion that is not known; the script has none
_OUTSIDE_OF_MARKS = r"(?=(?:[^\0]*\0[^\0]*\0)*[^\0]*\Z)"
_IFS = " \t\n"  # what separates words unless the script sets IFS
# `${NAME#pattern}`, `${NAME/old/new}` and `${NAME,,}`, without quotes and expansions inside; of patterns, `*` only.
_CHANGE = re.compile(
    r"\$\{(?P<name>\w+)(?:(?P<sign>##?|%%?)(?P<pattern>[\w./*:=,@ -]+)"
    r"|(?P<first>//?)(?P<old>[\w.:=,@-]+)(?:/(?P<new>[\w./:=,@-]*))?|(?P<case>,,|\^\^))\}"
)
_LENGTH = re.compile(r"\$\{#(?P<name>[A-Za-z_]\w*)(?P<all>\[[@*]\])?\}")
_NUMBER = re.compile(r"-?(0|[1-9]\d*)")


@dataclass(frozen=True, slots=True)
class Value:
    """Elements of an array, or one text.

    Attributes:
        line: where it is set.
        certain: whether this is all. If not, further elements may follow, or the text may be another one.
    """

    elements: tuple[str, ...]
    line: int
    certain: bool = True


@dataclass(slots=True)
class Variables:
    """Variables at one place of a script.

    Attributes:
        values: by name. `@` are the arguments of the running function; the script itself is assumed to have none.
        line: line of the running command.
        conditional: lines of conditional assignments, by the expansion whose value is unknown because of them.
    """

    values: dict[str, Value] = field(default_factory=dict)
    line: int = 1
    conditional: dict[str, int] = field(default_factory=dict)

    def forget(self, names: Iterable[str]) -> None:
        """Something sets these variables to what is not known."""
        self.values |= {name: Value((), self.line, certain=False) for name in names}

    def assign(self, word: Word) -> None:
        """Do what `NAME=text`, `NAME+=text` or `NAME=(…)` does; a word of `export` may also have no value."""
        match = ASSIGNMENT.match(word.source)
        if match is None:
            name, is_set, text = self.text(word.parts).partition("=")
            if is_set:
                self.values[name] = Value((text,), self.line)
            return
        old = self.values.get(match["name"]) if match["add"] else None
        elements, certain = ((), True) if old is None else (old.elements, old.certain)
        if match["index"]:
            certain = False
        elif certain and word.array is not None:
            elements = (*elements, *(element for added in word.array for element in self.fields(added)))
        elif certain:
            elements = ("".join(elements[:1]) + self.text(word.parts)[match.end() :], *elements[1:])
        self.values[match["name"]] = Value(elements, self.line, certain)

    def shift(self, count: int) -> None:
        """Drop the first arguments of the function that runs."""
        if (value := self.values.get("@")) is not None:
            self.values["@"] = Value(value.elements[count:] if value.certain else (), self.line, value.certain)

    def fields(self, word: Word) -> list[str]:
        """The words that a word becomes: none for arguments that are not known, several for an array."""
        fields: list[str] = []
        current: str | None = None
        for part in self._chosen(word.parts):
            for index, value in enumerate(self._expanded(part)):
                for number, piece in enumerate([value] if part.quoted else self._split(value)):
                    if (index or number) and current is not None:
                        fields.append(current)
                        current = None
                    if part.quoted or piece:
                        current = (current or "") + piece
        return fields if current is None else [*fields, current]

    def _split(self, text: str) -> list[str]:
        return re.split(f"[{re.escape(ifs)}]+{_OUTSIDE_OF_MARKS}", text) if (ifs := self._ifs()) else [text]

    def _ifs(self) -> str:
        """What separates words; an IFS that is not known is the usual one."""
        value = self.values.get("IFS")
        text = "".join(value.elements[:1]) if value is not None and value.certain else MARK
        return _IFS if MARK in text else text

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
            self.values[part.name] = Value((self.text(part.argument),), self.line)
        return part.argument if is_missing else None

    def _found(self, part: Parameter) -> Value | None:
        """What a parameter stands for; None if nothing sets it."""
        is_place = part.name.isdigit() and part.name != "0"
        value = self.values.get("@" if is_place or part.name == "*" else part.name)
        if value is None or not value.certain or part.is_array:
            return value
        index = int(part.name) - 1 if is_place else int(part.index or 0)
        return Value(value.elements[index : index + 1], value.line)

    def _expanded(self, part: Part) -> list[str]:
        unknown = MARK + part.source + MARK
        match part:
            case Text():
                return [part.source]
            case Output():
                return [unknown]
            case Arithmetic():
                try:
                    tree = ast.parse(_with_if(self.text(part.expression)).strip(), mode="eval")
                    return [str(_integer(tree.body, self.values))]
                except (ArithmeticError, SyntaxError, ValueError):
                    return [unknown]
            case Parameter():
                if part.name == "#" and part.source in ("$#", "${#}"):
                    arguments = self.values.get("@", Value((), self.line))
                    return [str(len(arguments.elements)) if arguments.certain else unknown]
                if part.operator == "other" and (changed := self._changed(part.source)) is not None:
                    return [changed]
                value = None if part.operator == "other" else self._found(part)
                if value is None:
                    return [] if part.name in ("@", "*") and "@" not in self.values else [unknown]
                if not value.certain:
                    self.conditional[part.source] = value.line
                    return [*(value.elements if part.is_array and not part.operator else ()), unknown]
                is_missing = not any(value.elements) if ":" in part.operator else not value.elements
                if "?" in part.operator and is_missing:
                    return [unknown]
                joined = not part.is_array or (part.quoted and "*" in (part.name, part.index))
                between = self._ifs()[:1] if part.quoted and "*" in (part.name, part.index) else " "
                return [between.join(value.elements)] if joined else list(value.elements)

    def _changed(self, source: str) -> str | None:
        """The text of `${NAME##*/}` and the like; None where it is not known, or needs more than a simple pattern."""
        match = _CHANGE.fullmatch(source) or _LENGTH.fullmatch(source)
        value = self.values.get(match["name"]) if match else None
        if match is None or value is None or not value.certain:
            return None
        text = "".join(value.elements[:1])
        if match.re is _LENGTH:
            return str(len(value.elements if match["all"] else text))
        if sign := match["case"]:
            return text.lower() if sign == ",," else text.upper()
        if first := match["first"]:
            return text.replace(match["old"], match["new"] or "", 1 if first == "/" else -1)
        pattern = re.compile(".*".join(map(re.escape, match["pattern"].split("*"))), re.DOTALL)
        sign = match["sign"]
        places = range(len(text) + 1)
        if sign in ("#", "##"):
            ends = (end for end in (places if sign == "#" else reversed(places)) if pattern.fullmatch(text[:end]))
            return text[next(ends, 0) :]
        starts = (start for start in (reversed(places) if sign == "%" else places) if pattern.fullmatch(text[start:]))
        return text[: next(starts, len(text))]


def merged(ends: Sequence[Mapping[str, Value]]) -> dict[str, Value]:
    """Variables after one of several ways through a script; certain is what all ways have in common."""
    variables = {}
    for name in dict.fromkeys(name for values in ends for name in values):
        final_values = [values.get(name, Value((), 0, certain=False)) for values in ends]
        same = all(value.certain and value.elements == final_values[0].elements for value in final_values)
        together = zip(*(value.elements for value in final_values), strict=False)
        common = tuple(element for element, *_ in takewhile(lambda those: len({*those}) == 1, together))
        variables[name] = Value(common, max(value.line for value in final_values), same)
    return variables


_COMPARISONS = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}


def _with_if(expression: str) -> str:
    """An expression of the shell with Python's `if` for its `test ? first : second`, outside of parentheses."""
    depth = 0
    signs = []
    for index, letter in enumerate(expression):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if not depth and letter in "?:":
            signs.append(index)
    if len(signs) != 2:
        return expression
    question, colon = signs
    test = expression[:question]
    first = expression[question + 1 : colon]
    second = expression[colon + 1 :]
    return f"({first}) if ({test}) else ({second})"


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
        case ast.Compare(left=left, ops=[sign], comparators=[right]) if type(sign) in _COMPARISONS:
            return int(_COMPARISONS[type(sign)](_integer(left, variables), _integer(right, variables)))
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return _integer(body if _integer(test, variables) else orelse, variables)
        case _:
            pass
    raise ArithmeticError
