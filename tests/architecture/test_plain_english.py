"""Committed text is read once: few of the phrases that readers had to translate back."""

import re
from pathlib import Path

import pytest

# Instead: repeat the noun, or use a genitive, `own` or `again`.
PHRASES = re.compile(r"\b(?:(?:that|those|what)\s+of|of\s+what|of\s+its\s+own|anew|goes\s+with)\b", re.IGNORECASE)
BEGINS_WITH_OF = re.compile(r'(?:"""|^\s*# )Of ', re.MULTILINE)
CODE = 0.5  # phrases in 1,000 lines
PAGES = 1.0
FOLDERS = ("operator", "verl_omni", "tests", "e2e", "benchmarks", "tools")


def phrases_of(texts: dict[str, str]) -> list[str]:
    """Each phrase with its file and line."""
    return [
        f"{name}:{text[: match.start()].count(chr(10)) + 1}: {match[0]}"
        for name, text in texts.items()
        for match in PHRASES.finditer(text)
    ]


@pytest.mark.parametrize("folder", FOLDERS)
def test_code_has_few_phrases_that_are_read_twice(root: Path, texts: dict[str, str], folder: str) -> None:
    this = Path(__file__).relative_to(root).as_posix()
    code = {
        name: text
        for name, text in texts.items()
        if name.startswith(f"{folder}/") and name.endswith(".py") and name != this
    }
    lines = sum(text.count("\n") for text in code.values())
    assert lines > 1000
    phrases = phrases_of(code)
    assert len(phrases) <= CODE * lines / 1000, phrases
    assert [name for name, text in code.items() if BEGINS_WITH_OF.search(text)] == []


def test_pages_have_few_phrases_that_are_read_twice(texts: dict[str, str]) -> None:
    pages = {
        name: text
        for name, text in texts.items()
        if name in ("README.md", "CONTRIBUTING.md") or (name.startswith("docs/") and name.endswith(".md"))
    }
    phrases = phrases_of(pages)
    assert len(phrases) <= PAGES * sum(text.count("\n") for text in pages.values()) / 1000, phrases


def test_a_phrase_is_found_also_over_two_lines() -> None:
    assert phrases_of({"a.md": "one\nthe size is that\nof the image, and what of it"}) == [
        "a.md:2: that\nof",
        "a.md:3: what of",
    ]
    assert phrases_of({"a.md": "the operator's own name of the pod"}) == []
