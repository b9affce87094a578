"""PURE: words and operators of a shell script: quotes are resolved, expansions are still to be made.

Comments, redirections and here-documents are dropped.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass

_BLANK = re.compile(r"(?:[ \t]|\\\n)+|#[^\n]*")
_REDIRECTION = re.compile(r"(?:\d+|\{\w+\})?(&>>?|<<<|<<-?|>>|>\||<>|[<>]&|[<>](?!\())[ \t]*")
_OPERATOR = re.compile(r"\n|;;&|;;|;&|&&|\|\||\|&|[;&|()]")
_WORD_END = " \t\n;&|()<>"
_ARRAY = re.compile(r"[A-Za-z_]\w*\+?=")
_SIMPLE = re.compile(r"\$(\w|[@*#?$!-])")
_NAME = re.compile(r"\$([A-Za-z_]\w*)")
_BRACED = re.compile(r"\$\{(\w+|[@*#?$!-])(?:\[([^\]]*)\])?(:?[-=+?])?")
_HYDRA = re.compile(r"\$\{[A-Za-z_]\w*\.")  # the shell has no dots in names
_ANSI = re.compile(r"\$'(?:\\.|[^'\\])*'", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{1,2})|[uU]([0-9a-fA-F]{1,8})|([0-7]{1,3})|(.))", re.DOTALL)
_ESCAPED = {
    "a": "\a",
    "b": "\b",
    "e": "\x1b",
    "E": "\x1b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
    "\\": "\\",
    "'": "'",
    '"': '"',
    "?": "?",
}
_BACKTICKS = re.compile(r"`(?:\\.|[^`\\])*`", re.DOTALL)
_COMMENT = re.compile(r"`\s*#[^`\n]*`")  # an output that is empty: a comment within a continued line
_DOCUMENT = re.compile(r"\$\(\s*cat\s*<<\s*(['\"])(\w+)\1[ \t]*\n(?P<text>.*?)\n\2[ \t]*\n\s*\)", re.DOTALL)
_HOME = re.compile(r"([A-Za-z_]\w*\+?=)?(~)(?=[/\s;&|()]|\Z)")
_HOME_IN_BRACES = re.compile(r"~(?=[/}])")
_NESTED = re.compile(r"\\.|'[^']*'|\"(?:\\.|[^\"\\])*\"|.", re.DOTALL)


class ScriptSyntaxError(ValueError):
    """A quote, parenthesis or brace that is not closed, and its line."""


@dataclass(frozen=True, slots=True)
class Text:
    """Characters as they are; `quoted` is also what only a word in `${NAME:-two words}` is not."""

    source: str
    quoted: bool = True


@dataclass(frozen=True, slots=True)
class Parameter:
    """`$name`, `${name[index]}` or `${name:-argument}`; `operator` is `other` for what is not computed."""

    source: str
    quoted: bool
    name: str
    index: str | None = None
    operator: str = ""
    argument: tuple[Part, ...] = ()

    @property
    def is_array(self) -> bool:
        """Whether it stands for all elements, or all arguments."""
        return "@" in (self.name, self.index) or "*" in (self.name, self.index)


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """`$((expression))`, or `((expression))` as a command."""

    source: str
    quoted: bool
    expression: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Output:
    """What a command prints, or another text that only a shell can make."""

    source: str
    quoted: bool = True


Part = Text | Parameter | Arithmetic | Output


@dataclass(frozen=True, slots=True)
class Word:
    """A word as it is written (`source`), and its parts; `array` has the words of `NAME=(…)`."""

    source: str
    line: int
    parts: tuple[Part, ...]
    array: tuple[Word, ...] | None = None


@dataclass(frozen=True, slots=True)
class Operator:
    """What separates commands: `;`, `&&`, `|`, a parenthesis, the end of a line."""

    source: str
    line: int


def split_script(text: str, first_line: int = 1) -> list[Word | Operator]:
    """All words and operators.

    Args:
        first_line: the number of the text's first line in the tokens.

    Raises:
        ScriptSyntaxError: a quote, parenthesis or brace is not closed.
    """
    return list(_Scanner(text.replace("\r\n", "\n").replace("\0", ""), first_line).tokens())


def _unescaped(match: re.Match[str]) -> str:
    """The character that an escape of `$'…'` stands for."""
    byte, point, octal, letter = match.groups()
    if letter:
        return _ESCAPED.get(letter, match[0])
    code = int(octal, 8) & 0xFF if octal else int(byte or point, 16)
    return chr(code) if code <= sys.maxunicode else match[0]


_HOME_PARAMETER = Parameter("$HOME", quoted=True, name="HOME")


class _Scanner:
    def __init__(self, text: str, first_line: int = 1) -> None:
        self._text = text
        self._at = 0
        self._line_at = 0
        self._line = first_line
        self._first_line = first_line
        self._documents: list[tuple[str, bool]] = []  # here-documents that begin at the next line

    def tokens(self) -> Iterator[Word | Operator]:
        while self._at < len(self._text):
            line = self._count_lines()
            if match := _BLANK.match(self._text, self._at):
                self._at = match.end()
            elif match := _REDIRECTION.match(self._text, self._at):
                self._at = match.end()
                target = self._process(line) or self._word(line)
                if match[1] in ("<<", "<<-"):
                    ending = "".join(part.source for part in target.parts if isinstance(part, Text))
                    self._documents.append((ending, match[1] == "<<-"))
            elif process := self._process(line):
                yield process
            elif match := _OPERATOR.match(self._text, self._at):
                self._at = match.end()
                yield Operator(match[0], line)
                if match[0] == "\n":
                    self._skip_documents()
            else:
                yield self._word(line)

    def _process(self, line: int) -> Word | None:
        """`<(command)`, `>(command)` or `((expression))`, if one is here."""
        if not self._text.startswith(("<(", ">(", "(("), self._at):
            return None
        start = self._at
        self._at += self._text[start] != "("
        self._skip_parentheses()
        source = self._text[start : self._at]
        is_arithmetic = source.startswith("((") and source.endswith("))")
        return Word(source, line, (self._arithmetic(source, 2) if is_arithmetic else Output(source),))

    def _count_lines(self) -> int:
        self._line += self._text.count("\n", self._line_at, self._at)
        self._line_at = self._at
        return self._line

    def _fail(self, what: str) -> ScriptSyntaxError:
        return ScriptSyntaxError(f"no closing {what} (line {self._count_lines() - self._first_line + 1})")

    def _skip_documents(self) -> None:
        for ending, tabs in self._documents:
            while self._at < len(self._text):
                line, _, _ = self._text[self._at :].partition("\n")
                self._at += len(line) + 1
                if (line.lstrip("\t") if tabs else line) == ending:
                    break
        self._documents = []

    def _skip_parentheses(self) -> None:
        """Go behind the parenthesis that closes the one here."""
        self._count_lines()
        depth = 0
        while match := _NESTED.match(self._text, self._at):
            self._at = match.end()
            depth += {"(": 1, ")": -1}.get(match[0], 0)
            if not depth:
                return
        raise self._fail("parenthesis")

    def _word(self, line: int) -> Word:
        start = self._at
        parts: list[Part] = []
        if match := _HOME.match(self._text, start):
            parts += [Text(match[1] or ""), _HOME_PARAMETER]
            self._at = match.end()
        parts += self._parts(_WORD_END)
        array = None
        if self._text.startswith("(", self._at) and _ARRAY.fullmatch(self._text, start, self._at):
            self._at += 1
            words: list[Word] = []
            for token in self.tokens():
                if token.source == ")" and isinstance(token, Operator):
                    array = tuple(words)
                    break
                if isinstance(token, Word):
                    words.append(token)
            else:
                raise self._fail("parenthesis")
        return Word(self._text[start : self._at], line, tuple(parts), array)

    def _parts(self, end: str, quoted: bool = False) -> list[Part]:
        """Parts up to a character of `end` that is not quoted."""
        parts: list[Part] = []
        while self._at < len(self._text) and (letter := self._text[self._at]) not in end:
            if letter == "\\":
                following = self._text[self._at + 1 : self._at + 2]
                self._at += 2
                if following != "\n":
                    kept = "\\" if quoted and following not in '$`"\\' + end else ""
                    parts.append(Text(kept + following))
            elif letter == "'" and not quoted:
                close = self._text.find("'", self._at + 1)
                if close < 0:
                    raise self._fail("quotation")
                parts.append(Text(self._text[self._at + 1 : close]))
                self._at = close + 1
            elif letter == '"':
                self._at += 1
                parts += self._closed('"', "quotation", quoted=True) or [Text("")]
            elif letter in "$`":
                parts.append(self._expansion(quoted))
            else:
                start = self._at
                self._at += 1
                while self._at < len(self._text) and self._text[self._at] not in end + "\\'\"$`":
                    self._at += 1
                parts.append(Text(self._text[start : self._at], quoted or end != "}"))
        return parts

    def _closed(self, end: str, what: str, quoted: bool) -> list[Part]:
        self._count_lines()
        parts = self._parts(end, quoted)
        if self._at >= len(self._text):
            raise self._fail(what)
        self._at += 1
        return parts

    def _expansion(self, quoted: bool) -> Part:
        start = self._at
        if match := _COMMENT.match(self._text, start) or _DOCUMENT.match(self._text, start):
            self._at = match.end()
            return Text(match["text"].rstrip("\n") if match.re is _DOCUMENT else "", quoted)
        if self._text.startswith("$(", start):
            self._at += 1
            self._skip_parentheses()
            source = self._text[start : self._at]
            if source.startswith("$((") and source.endswith("))"):
                return self._arithmetic(source, 3, quoted)
            return Output(source)
        if match := _BACKTICKS.match(self._text, start):
            self._at = match.end()
            return Output(match[0])
        if not quoted and (match := _ANSI.match(self._text, start)):
            self._at = match.end()
            return Text(_ESCAPE.sub(_unescaped, match[0][2:-1]))
        if match := _BRACED.match(self._text, start):
            return self._braced(match, quoted)
        if match := _NAME.match(self._text, start) or _SIMPLE.match(self._text, start):
            self._at = match.end()
            return Parameter(match[0], quoted, match[1])
        if self._text[start] == "`":
            raise self._fail("backtick")
        self._at += 1
        return Text("$")

    def _arithmetic(self, source: str, start: int, quoted: bool = True) -> Arithmetic:
        """`$((expression))` or `((expression))`, whose expression begins at `start`."""
        return Arithmetic(source, quoted, tuple(_Scanner(source[start:-2])._parts("", quoted=True)))

    def _braced(self, match: re.Match[str], quoted: bool) -> Part:
        is_other = not match[3] and not self._text.startswith("}", match.end())
        is_other = is_other or not (match[2] is None or match[2].isdigit() or match[2] in ("@", "*"))
        self._at = match.end()
        home: tuple[Part, ...] = ()
        if not quoted and match[3] and (tilde := _HOME_IN_BRACES.match(self._text, self._at)):
            home = (_HOME_PARAMETER,)
            self._at = tilde.end()
        argument = (*home, *self._closed("}", "brace", quoted))
        source = self._text[match.start() : self._at]
        if _HYDRA.match(source):
            return Text(source)
        return Parameter(source, quoted, match[1], match[2], "other" if is_other else match[3] or "", argument)
