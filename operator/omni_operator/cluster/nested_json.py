"""PURE: parser of JSON of any depth.

The API server takes objects that are nested in 10,000 levels, also in fields of a job that have no schema in the CRD.
Python's parser raises an error at about 1,000, so that one object would hide all others of its list or watch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

DEPTH = 100  # levels that are kept of what Python cannot parse; pods have 15
CUT = b'"(nested too deeply)"'
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[{\]}]', re.DOTALL)


def load_json(data: bytes) -> Any:
    """The value of a JSON text. Where it is nested too deeply for Python, its inner levels become a string.

    Raises:
        ValueError: it is not JSON.
    """
    try:
        return json.loads(data)
    except RecursionError:
        return json.loads(b"".join(_outer_levels(data)))


def _outer_levels(data: bytes) -> Iterator[bytes]:
    depth = start = 0
    for found in _TOKEN.finditer(data):
        if found[0] in (b"[", b"{"):
            depth += 1
            if depth == DEPTH + 1:
                yield data[start : found.start()] + CUT
        elif found[0] in (b"]", b"}"):
            if depth == DEPTH + 1:
                start = found.end()
            depth -= 1
    if depth <= DEPTH:
        yield data[start:]
