"""PURE: types and ranges of overrides' values, which the project's trainer checks at its start (`setting_names.py`)."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from .override_names import parse_value
from .setting_names import EMPTY_GROUPS, GROUPS, NEVER_NULL, NOT_NEGATIVE, NUMBERS, PAIRS, POSITIVE, SWITCHES


def read_value(text: str) -> Any:
    """The value of an override, as far as it is checked: not what is in a mapping."""
    if not text.strip():
        return ""
    return {} if text.lstrip().startswith("{") else parse_value(text)


def find_wrong_values(given: Mapping[str, Any], known: Collection[str]) -> Iterator[tuple[str, str]]:
    """Settings with a value of another type or out of its range, each with what is wrong.

    Args:
        given: values by the setting's name here.
        known: settings of the algorithm; others are not read.
    """
    for name, value in given.items():
        if name in known and (text := _describe(name, value)):
            yield name, text


def _describe(name: str, value: Any) -> str | None:
    if name in GROUPS:
        if isinstance(value, dict) or (value is None and name in EMPTY_GROUPS):
            return None
        return f"must be a group of settings, not {'null' if value is None else value}"
    if (advice := _advice(name)) is None or (value is None and name not in NEVER_NULL):
        return None
    if not _fits(name, value):
        if value == "":
            return f"has no value; write {advice}"
        return f"{_shown(value)} is not supported; write {advice}"
    if name in POSITIVE and not value > 0:
        return f"must be positive: {value}{POSITIVE[name]}"
    if name in NOT_NEGATIVE and not value >= 0:
        return f"must not be negative: {value}{NOT_NEGATIVE[name]}"
    return None


def _advice(name: str) -> str | None:
    """What to write; None for a setting whose type is not checked."""
    if name in NUMBERS:
        return "a number"
    if name in SWITCHES:
        return "true or false"
    return f"two numbers, such as {PAIRS[name]}" if name in PAIRS else None


def _fits(name: str, value: Any) -> bool:
    if name in SWITCHES:
        return isinstance(value, bool) or (is_number(value) and value in (0, 1))
    if name in PAIRS:
        return isinstance(value, list) and len(value) == 2 and all(map(_is_written_number, value))
    return is_number(value)


def is_number(value: Any) -> bool:
    """Whether a value is an integer or a float; a switch is neither."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_written_number(value: Any) -> bool:
    """Also a number like 1e-5 in a list, which is text in YAML 1.1."""
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            float(value)
            return True
    return is_number(value)


def _shown(value: Any) -> str:
    return "null" if value is None else f"the text {value!r}" if isinstance(value, str) else str(value)
