"""Committed text uses the terms of the field: no phrase that readers had to translate back."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

# A phrase that readers stumbled over, and what to write instead.
PHRASES = {
    r"anybody|somebody|everybody|nobody|whoever": "who it is: the user, the operator, another process",
    r"beside": "next to, besides, in addition to, in parallel with",
    r"(?:is|are|be|been) believed": "is trusted, is accepted",
    r"(?:was|is|are|been|be) granted": "succeeds, is allowed, is admitted",
    r"(?:gone|goes|going|go) on (?:with|from)": "resume, continue",
    r"the processor computes|host's processor": "runs on the CPU",
    r"mak(?:e|es|ing) smaller": "reduces, minimizes",
    r"owes": "has requests in flight",
    r"(?:is|are) waited for": "wait for",
    r"(?:is|are) told of|heard of": "is notified of, receives",
    r"is through|is fled|fled from": "is finished, is lost",
    r"miss(?:es)? (?:its|their|the) aim": "misses its target",
    r"of which nobody|that of which": "two sentences",
    r"of no use to": "is not needed by",
    r"by turns": "alternately",
    r"(?:refused|rejected|said|says|told|values that are refused) in words": "with an error message",
}
# Not prose of this project: locked sets, licence, prompts, tokenizers, and this list.
LEFT_OUT = re.compile(
    r"^(requirements/.*\.txt|LICENSE|examples/prompts/|examples/shapes-sd3/|e2e/tools/|docs/figures/)"
)
ANY = re.compile(rf"\b(?:{'|'.join(PHRASES)})\b", re.IGNORECASE)
SUFFIXES = {".py", ".md", ".yaml", ".yml", ".toml", ".j2", ".tpl", ".sh", ".txt", ".json", ".cpp", ".go", ""}


def stumbles(text: str) -> list[str]:
    """Lines with such a phrase, each with what to write instead."""
    if not ANY.search(text):  # in almost all files, and much faster than line by line
        return []
    return [
        f"{number}: {match[0]!r}; write: {better}"
        for number, line in enumerate(text.splitlines(), start=1)
        for phrase, better in PHRASES.items()
        if (match := re.search(rf"\b(?:{phrase})\b", line, re.IGNORECASE))
    ]


def test_committed_text_is_plain(root: Path) -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout: the committed files are unknown")
    names = [name for name in listed.stdout.decode().split("\0") if name and not LEFT_OUT.match(name)]
    paths = [path for name in names if (path := root / name).suffix in SUFFIXES and path != Path(__file__)]
    assert len(paths) > 300
    found = {}
    for path in paths:
        if path.is_file() and (lines := stumbles(path.read_text(encoding="utf-8"))):
            found[path.relative_to(root).as_posix()] = lines
    assert found == {}


def test_a_phrase_is_found() -> None:
    assert stumbles("one\nit is waited for") == ["2: 'is waited for'; write: wait for"]
    assert stumbles("besides, the operator resumes from the last checkpoint") == []
