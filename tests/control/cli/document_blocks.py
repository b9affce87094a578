"""Code blocks of the committed Markdown files, and the commands in them."""

import re
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = ("docs", "changelog.d", "examples", "images", "charts", "e2e")
PAGES = (*sorted(ROOT.glob("*.md")), *(page for name in FOLDERS for page in sorted((ROOT / name).rglob("*.md"))))
FENCE = re.compile(r"^ *(`{3,}|~{3,})(.*)$")
LIST_ITEM = re.compile(r"^ *([-*+]|\d+[.)]) ")
INLINE = re.compile(r"`([^`\n]+)`")
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
SEPARATORS = {"|", "||", "&&", ";", "&"}


@dataclass(frozen=True, slots=True)
class Block:
    """A code block; `language` is the language of its fence, or `indented` if it has no fence."""

    page: str
    line: int
    language: str
    text: str

    @property
    def place(self) -> str:
        """Page and line, for the id of a test."""
        return f"{self.page}:{self.line}"


@dataclass(frozen=True, slots=True)
class Command:
    """A simple command: no pipe, no redirection, no comment."""

    page: str
    variables: tuple[str, ...]
    words: tuple[str, ...]

    @property
    def text(self) -> str:
        """The command without its variables; a program of the project's environment has its name only."""
        return " ".join([Path(self.words[0]).name if "/bin/" in self.words[0] else self.words[0], *self.words[1:]])


def blocks(page: Path) -> list[Block]:
    """All code blocks of a page, in their order."""
    name = page.relative_to(ROOT).as_posix() if page.is_relative_to(ROOT) else page.name
    lines = []
    blocks: list[Block] = []
    fence = ""
    start = 0
    language = ""
    in_list = False
    indented = False
    in_directive = False  # of mkdocstrings, whose options are indented
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        mark = FENCE.match(line)
        if fence:
            if mark and mark[1].startswith(fence) and not mark[2].strip():
                blocks.append(Block(name, start, language, textwrap.dedent("\n".join(lines) + "\n")))
                fence = ""
            else:
                lines.append(line)
        elif mark:
            fence = mark[1]
            start = number
            language = mark[2].strip()
            lines = []
        elif LIST_ITEM.match(line):
            in_list = True
        elif line.strip() and not line.startswith("  "):
            in_list = indented = False
            in_directive = line.startswith(":::")
        elif line.startswith("    ") and line.strip() and not (in_list or indented or in_directive):
            blocks.append(Block(name, number, "indented", line))
            indented = True
    assert not fence, f"{name}:{start}: a block without an end"
    return blocks


def commands(block: Block) -> list[Command]:
    """Simple commands of a block of shell."""
    return [command for line in _logical_lines(block.text) for command in split(block.page, line)]


def inline_commands(page: Path) -> Iterator[str]:
    """Code within the text of a page."""
    kept = []
    fence = ""
    for line in page.read_text(encoding="utf-8").splitlines():
        if mark := FENCE.match(line):
            fence = "" if fence else mark[1]
        elif not fence:
            kept.append(line)
    yield from INLINE.findall("\n".join(kept))


def split(page: str, line: str) -> list[Command]:
    """The simple commands of a line.

    Raises:
        ValueError: a quotation has no end.
    """
    words_by_command: list[list[str]] = [[]]
    for word in _words(line):
        if word in SEPARATORS:
            words_by_command.append([])
        else:
            words_by_command[-1].append(word)
    return [command for words in words_by_command if (command := _command(page, words))]


def _command(page: str, words: list[str]) -> Command | None:
    redirected = next((at for at, word in enumerate(words) if word in (">", ">>", "<")), len(words))
    words = words[:redirected]
    variables = []
    while words and ASSIGNMENT.match(words[0]):
        variables.append(words.pop(0))
    return Command(page, tuple(variables), tuple(words)) if words else None


def _words(line: str) -> list[str]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;")
    lexer.whitespace_split = True
    return list(lexer)


def _logical_lines(text: str) -> Iterator[str]:
    """Lines without their continuations; a quotation may span several."""
    line = ""
    for part in text.replace("\\\n", " ").splitlines():
        line = f"{line}\n{part}" if line else part
        try:
            _words(line)
        except ValueError:
            continue
        yield line
        line = ""
    assert not line, f"a quotation without an end: {line}"
