"""PURE: chat templates of several lines, in one: an override of a job has no line breaks.

The text that a template makes stays the same. As transformers do, it is read with Jinja's `trim_blocks` and
`lstrip_blocks`.
"""

import re

_TAG = re.compile(r"\{%.*?%\}|\{\{.*?\}\}|\{#.*?#\}", re.DOTALL)
_LITERAL = re.compile(r"'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"", re.DOTALL)
_BLANK_LINE = re.compile(r"(?:\A|(?<=\n))[ \t]*\Z")


def is_template(text: str) -> bool:
    """Whether a quoted value of an override is a template, and not a text in which line breaks mean themselves."""
    return text[:1] in ("'", '"') and text[-1:] == text[:1] and _TAG.search(text) is not None


def in_one_line(text: str) -> str:
    """A template in the quotes of an override, without line breaks."""
    quote = text[0]
    source = text[1:-1].replace("\r\n", "\n").replace("\r", "\n")
    # Quotes within the override's quotes are escaped; quotes of the other kind need not be.
    line_break = "{{ '\\n' }}" if quote == '"' else '{{ "\\n" }}'
    parts = []
    position = 0
    before = ""
    for match in _TAG.finditer(source):
        parts += [_data(source[position : match.start()], before, match[0]).replace("\n", line_break), _tag(match[0])]
        position = match.end()
        before = match[0]
    last = _data(source[position:], before, "")
    return f"{quote}{''.join(parts)}{last.removesuffix(chr(10)).replace(chr(10), line_break)}{quote}"


def _data(text: str, before: str, after: str) -> str:
    """What Jinja leaves of the text between two tags; either may be missing."""
    begins_line = not before or "\n" in text
    if before[-3:-2] == "-":
        text = text.lstrip()
    elif before.startswith(("{%", "{#")) and before[-3:-2] != "+":
        text = text.removeprefix("\n")
    if after[2:3] == "-":
        return text.rstrip()
    if begins_line and after.startswith(("{%", "{#")) and after[2:3] != "+":
        return _BLANK_LINE.sub("", text)
    return text


def _tag(tag: str) -> str:
    """A tag in one line: a line break in a text is written as an escape, and another one is a blank."""
    parts = []
    position = 0
    for literal in _LITERAL.finditer(tag):
        parts += [tag[position : literal.start()].replace("\n", " "), literal[0].replace("\n", "\\n")]
        position = literal.end()
    return "".join([*parts, tag[position:].replace("\n", " ")])
