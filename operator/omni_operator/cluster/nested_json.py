"""PURE: parser of JSON of any depth.

The API server takes objects that are nested in 10,000 levels, also in fields of a job that have no schema in the CRD.
How many Python parses, and what then writes or compares them, depends on its version and on the stack: one such object
must not hide all others of its list or watch.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

DEPTH = 100  # levels that are kept; pods have 15
USUAL = 20  # levels of nearly all objects, for which no string is looked for
CUT = b'"(nested too deeply)"'
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[{]+|[\]}]+', re.DOTALL)
_OTHERS = bytes(set(range(256)) - set(b"[{}]"))


def load_json(data: bytes) -> Any:
    """The value of a JSON text. What is nested in more than `DEPTH` levels becomes a string.

    Raises:
        ValueError: it is not JSON.
    """
    return json.loads(cut_text(data))


def cut_text(data: bytes) -> bytes:
    """A JSON text in which a string replaces what is nested in more than `DEPTH` levels."""
    return b"".join(_outer_levels(data)) if _may_be_deep(data) else data


def _may_be_deep(data: bytes) -> bool:
    """Whether a text has many levels, or brackets in its strings that hide how many it has."""
    brackets = data.translate(None, _OTHERS)
    for _ in range(USUAL):
        if not brackets:
            return False
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
    return bool(brackets)


def _outer_levels(data: bytes) -> Iterator[bytes]:
    depth = start = 0
    for token in _TOKEN.finditer(data):
        before = depth
        if token[0][:1] in (b"[", b"{"):
            depth += len(token[0])
            if before <= DEPTH < depth:
                yield data[start : token.start() + DEPTH - before] + CUT
        elif token[0][:1] != b'"':
            depth -= len(token[0])
            if depth <= DEPTH < before:
                start = token.start() + before - DEPTH
    if depth <= DEPTH:
        yield data[start:]
