"""PURE: types and ranges of overrides' values, which the project's trainer checks at its start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from verl_omni.settings_schema.layout import common_layout, layout

from .override_names import parse_value


def read_value(text: str) -> Any:
    """The value of an override, as far as it is checked: not what is in a mapping."""
    if not text.strip():
        return ""
    if text.lstrip().startswith("{"):
        return {}
    value = parse_value(text)
    # A number like 1e-5 in a list is a text in YAML 1.1.
    return (
        [parse_value(each) if isinstance(each, str) else each for each in value] if isinstance(value, list) else value
    )


def find_wrong_values(given: Mapping[str, Any], loss: str | None) -> Iterator[tuple[str, str]]:
    """Settings with a value of another type or out of its range, each with what is wrong.

    Args:
        given: values by the setting's name here.
        loss: the trainer's name of the algorithm, which does not read the settings of others; None: one of the user's.
    """
    known = common_layout() if loss is None else layout(loss)
    for name, value in given.items():
        if text := known.wrong_value(name, value):
            yield name, text
