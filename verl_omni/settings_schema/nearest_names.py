"""PURE: the nearest name of a setting for a misspelt one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest_setting(name: str, valid: Iterable[str]) -> str | None:
    """The most similar name with dots whose last part is similar too, or one with the same last part."""
    last = name.rpartition(".")[2]
    parts = {one: one.rpartition(".")[2] for one in sorted(valid)}
    similar = (
        one
        for one in difflib.get_close_matches(name, parts, n=10, cutoff=0.5)
        if difflib.SequenceMatcher(None, last, parts[one]).ratio() >= 0.6
    )
    return next(similar, next((one for one, part in parts.items() if part == last), None))
