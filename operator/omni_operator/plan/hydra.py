"""PURE: Hydra overrides from names and values, quoted so that Hydra parses the same values."""

import math
import re
from collections.abc import Sequence
from typing import TypeAlias

Value: TypeAlias = "str | int | float | bool | Sequence[Value] | None"
# Strings that Hydra's grammar reads without quotes, except keywords and numbers such as `.5`.
_PLAIN = re.compile(r"^(?!\.[0-9])[A-Za-z_/.][A-Za-z0-9_./-]*$")
_WORDS = {"null", "true", "false", "nan", "inf"}
_BEFORE_QUOTE = re.compile(r"(\\*)('|$)")
_BEFORE_INTERPOLATION = re.compile(r"(\\*)\$\{")


def format_assignment(name: str, value: Value) -> str:
    """Format `name=value`."""
    return f"{name}={format_literal(value)}"


def format_literal(value: Value) -> str:
    """Format a value in Hydra's syntax.

    Raises:
        ValueError: the value is not a finite number.
    """
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            if not math.isfinite(value):
                raise ValueError(f"not a finite number: {value}")
            return repr(value)
        case str():
            return _text(value)
        case _:
            return "[" + ",".join(format_literal(item) for item in value) + "]"


def _text(value: str) -> str:
    """Quote a string if needed. Backslashes escape only before a quote (Hydra) and before `${` (OmegaConf)."""
    if _PLAIN.match(value) and value.lower() not in _WORDS:
        return value
    escaped = _BEFORE_INTERPOLATION.sub(lambda found: found[1] * 2 + r"\${", value)
    quoted = _BEFORE_QUOTE.sub(lambda found: found[1] * 2 + (r"\'" if found[2] else ""), escaped)
    return f"'{quoted}'"
